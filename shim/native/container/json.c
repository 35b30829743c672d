#include "container/json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 64 /* maximum depth of nested values; OCI documents have far fewer */

static const char *skip_blanks(const char *at) { return at + strspn(at, " \t\r\n"); }

/* Returns the position after the string that begins at `at`, or NULL if it is unterminated. */
static const char *skip_string(const char *at) {
  for (at++; *at && *at != '"'; at++) {
    if (*at == '\\' && !*++at) return NULL;
  }
  return *at ? at + 1 : NULL;
}

/* Returns the position after the value that begins at `at`, or NULL if it is unterminated. */
static const char *skip_value(const char *at) {
  int depth = 0;
  do {
    at = skip_blanks(at);
    if (*at == '"') {
      at = skip_string(at);
      if (!at) return NULL;
    } else if (*at == '{' || *at == '[') {
      if (++depth > DEEPEST) return NULL;
      at++;
    } else if (*at == '}' || *at == ']') {
      depth--;
      at++;
    } else if (*at == ',' || *at == ':') {
      if (!depth) return NULL;
      at++;
    } else {
      size_t length = strcspn(at, " \t\r\n,:{}[]\"");
      if (!length) return NULL;
      at += length;
    }
  } while (depth > 0);
  return depth ? NULL : at;
}

static size_t put_utf8(unsigned code, char *out) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
  }
  out[0] = (char)(0xe0 | code >> 12);
  out[1] = (char)(0x80 | (code >> 6 & 0x3f));
  out[2] = (char)(0x80 | (code & 0x3f));
  return 3;
}

/* Decodes an escape sequence, where `at` points after the backslash, and moves `at` to its last
 * character. Surrogate pairs are refused, because programs that write OCI documents escape only
 * control characters. */
static bool unescape(const char **at, unsigned *code) {
  static const char letters[] = "bfnrt\"\\/", meant[] = "\b\f\n\r\t\"\\/";
  const char *known = **at ? strchr(letters, **at) : NULL;
  if (known) {
    *code = (unsigned char)meant[known - letters];
    return true;
  }
  if (**at != 'u') return false;
  char digits[5] = {0};
  for (int i = 0; i < 4; i++) {
    digits[i] = (*at)[i + 1];
    if (!isxdigit((unsigned char)digits[i])) return false;
  }
  *code = (unsigned)strtoul(digits, NULL, 16);
  *at += 4;
  return *code != 0 && (*code < 0xd800 || *code > 0xdfff);
}

static bool copy_string(const char *at, char *out, size_t size) {
  size_t length = 0;
  if (*at != '"') return false;
  for (at++; *at != '"'; at++) {
    unsigned code = (unsigned char)*at;
    if (!code || length + 4 > size) return false;
    if (code != '\\') {
      out[length++] = *at;
      continue;
    }
    at++;
    if (!unescape(&at, &code)) return false;
    length += put_utf8(code, out + length);
  }
  out[length] = 0;
  return true;
}

/* Returns the value of a member of the object at `at`, or NULL if there is no such member. */
static const char *find_member(const char *at, const char *name) {
  char found[256];
  at = skip_blanks(at);
  if (*at != '{') return NULL;
  at = skip_blanks(at + 1);
  while (*at == '"') {
    bool same = copy_string(at, found, sizeof found) && strcmp(found, name) == 0;
    at = skip_string(at);
    if (!at) return NULL;
    at = skip_blanks(at);
    if (*at != ':') return NULL;
    at = skip_blanks(at + 1);
    if (same) return at;
    at = skip_value(at);
    if (!at) return NULL;
    at = skip_blanks(at);
    if (*at != ',') return NULL;
    at = skip_blanks(at + 1);
  }
  return NULL;
}

bool json_find_string(const char *document, const char *first, const char *second, char *out,
                      size_t size) {
  const char *value = find_member(document, first);
  if (value && second) value = find_member(value, second);
  return value && copy_string(value, out, size);
}
