/* A second file of the same program: declarations only, before and after other headers, twice. */
#include "prediff.h"
#include <stdio.h>
#include <stdlib.h>
#include "prediff.h"

int second_file(void);
int second_file(void) { return prediff_version(); }
