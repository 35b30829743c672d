/* Compares cuGetProcAddress of a library with its exports: variants LIBRARY <asks
 *
 * Each line of standard input is "name<TAB>version<TAB>flags<TAB>symbol". Prints for each "same"
 * when cuGetProcAddress of LIBRARY answers with its own export `symbol` ("-": with nothing),
 * "lacks" when it has no such export (it gives an older variant then, or nothing), "other" for
 * everything else.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult (*query)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static const char *verdict(void *library, const void *function, const char *symbol) {
  if (strcmp(symbol, "-") == 0) return function ? "other" : "same";
  const void *own = dlsym(library, symbol);
  return !own ? "lacks" : own == function ? "same" : "other";
}

int main(int count, char **words) {
  void *library = count == 2 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  query ask = library ? (query)dlsym(library, "cuGetProcAddress_v2") : NULL;
  if (!ask) return fprintf(stderr, "%s\n", dlerror()), 1;
  char line[512];
  while (fgets(line, sizeof line, stdin)) {
    char *rest = line;
    char *name = strsep(&rest, "\t"), *version = strsep(&rest, "\t"), *flags = strsep(&rest, "\t");
    char *symbol = strsep(&rest, "\n");
    if (!symbol) return fprintf(stderr, "not an ask: %s\n", line), 1;
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    ask(name, &function, atoi(version), (cuuint64_t)atoi(flags), &status);
    puts(verdict(library, function, symbol));
  }
  return 0;
}
