/* The implementation asked for twice, as happens when two headers of a project do it, is there once. */
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"
#include <stdio.h>

int main(void) {
    prediff_model_desc d = { 0 };
    prediff_model *m;
    prediff_error e;
    int status = prediff_model_open(&m, &d, &e);
    printf("%s\n", e.message);
    return status == PREDIFF_ERR_ARG ? 0 : 1;
}
