/* Everything static, nothing used: no warning may come of it. */
#define PREDIFF_IMPLEMENTATION
#define PREDIFF_STATIC
#include "prediff.h"

int main(void) { return 0; }
