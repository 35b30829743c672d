/* The hook's JSON, under sanitizers: `find FIRST SECOND|-` reads documents that end in a NUL from
 * standard input and answers each with a line: `=` and what was found in hexadecimal, or `none`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "container/json.h"

int main(int count, char **arguments) {
  char *document = NULL, found[64];
  size_t room = 0;
  if (count != 3) return 2;
  const char *second = strcmp(arguments[2], "-") == 0 ? NULL : arguments[2];
  while (getdelim(&document, &room, 0, stdin) > 0) {
    if (json_find_string(document, arguments[1], second, found, sizeof found)) {
      putchar('=');
      for (const char *at = found; *at; at++) printf("%02x", (unsigned char)*at);
      putchar('\n');
    } else {
      puts("none");
    }
    fflush(stdout);
  }
  free(document);
  return 0;
}
