/* After headers that define ordinary words as macros. */
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define I (0.0f + 1.0fi)
#define R 1
#define L 2
#define C 3
#define B 4
#define ERROR 0
#define IN
#define OUT
#define CONST const
#define PREDIFF_IMPLEMENTATION
#include "prediff.h"

int main(void) { return prediff_version() == PREDIFF_VERSION ? 0 : 1; }
