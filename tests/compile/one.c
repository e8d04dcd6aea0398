/* The header alone, as a user's first file. Prints the sizes of the public structs: no setting may change them. */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>

int main(void) {
    printf("%d %u %u %u %u %u %u %u %u %u %u %u\n", prediff_version(), (unsigned)sizeof(prediff_error), (unsigned)sizeof(prediff_model_desc),
           (unsigned)sizeof(prediff_model_info), (unsigned)sizeof(prediff_context_desc), (unsigned)sizeof(prediff_forward_desc),
           (unsigned)sizeof(prediff_generate_desc), (unsigned)sizeof(prediff_step_info), (unsigned)sizeof(prediff_result),
           (unsigned)sizeof(prediff_score_desc), (unsigned)sizeof(prediff_save_desc), (unsigned)sizeof(prediff_decoder));
    return 0;
}
