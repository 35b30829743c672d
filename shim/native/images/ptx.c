/* Measures the variables of PTX text. Comments and strings are skipped. A variable's declaration
 * starts with its state space (.global or .const). */
#define _GNU_SOURCE
#include <ctype.h>
#include <string.h>

#include "images/image.h"

typedef struct text {
  const char *at, *end;
} text;

typedef struct token {
  const char *from;
  uint64_t length; /* 0 at the end of the text */
} token;

static uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t both;
  return __builtin_add_overflow(a, b, &both) ? UINT64_MAX : both;
}

static uint64_t product(uint64_t a, uint64_t b) {
  uint64_t both;
  return __builtin_mul_overflow(a, b, &both) ? UINT64_MAX : both;
}

/* Skips `opening` bytes and everything up to and including `closing`. */
static void skip_past(text *t, uint64_t opening, const char *closing) {
  t->at += opening;
  const char *close = memmem(t->at, (uint64_t)(t->end - t->at), closing, strlen(closing));
  t->at = close ? close + strlen(closing) : t->end;
}

static bool begins(const text *t, const char *with) {
  uint64_t length = strlen(with);
  return (uint64_t)(t->end - t->at) >= length && memcmp(t->at, with, length) == 0;
}

static void skip_space(text *t) {
  while (t->at < t->end) {
    if (isspace((unsigned char)*t->at)) {
      t->at++;
    } else if (begins(t, "//")) {
      skip_past(t, 2, "\n");
    } else if (begins(t, "/*")) {
      skip_past(t, 2, "*/");
    } else if (*t->at == '"') {
      skip_past(t, 1, "\"");
    } else {
      return;
    }
  }
}

static bool is_part_of_word(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* Reads the next word or single character. */
static token next(text *t) {
  skip_space(t);
  token one = {.from = t->at};
  if (t->at == t->end) return one;
  if (!is_part_of_word(*t->at))
    t->at++;
  else
    while (t->at < t->end && is_part_of_word(*t->at)) t->at++;
  one.length = (uint64_t)(t->at - one.from);
  return one;
}

static bool is(token one, const char *what) {
  return strlen(what) == one.length && memcmp(one.from, what, one.length) == 0;
}

/* Parses a decimal, 0x… or 0b… number. Returns UINT64_MAX on overflow. Octal is read as decimal,
 * which is never smaller. */
static uint64_t number(token one) {
  uint64_t value = 0, base = 10, i = 0;
  if (one.length > 2 && one.from[0] == '0') {
    if ((one.from[1] | 0x20) == 'x') base = 16;
    if ((one.from[1] | 0x20) == 'b') base = 2;
    if (base != 10) i = 2;
  }
  for (; i < one.length; i++) {
    char c = one.from[i] | 0x20;
    uint64_t digit = c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a') + 10 : (uint64_t)(c - '0');
    if ((c < '0' || c > '9') && (c < 'a' || c > 'f')) break;
    if (digit >= base) break;
    value = sum(product(value, base), digit);
  }
  return value;
}

/* Returns the size of a scalar type, or 0 if the token is not a type. */
static uint64_t type_bytes(token one) {
  if (is(one, ".texref") || is(one, ".surfref") || is(one, ".samplerref")) return 8;
  if (one.length < 3 || one.from[0] != '.' || !strchr("busfe", one.from[1])) return 0;
  token digits = {.from = one.from, .length = one.length};
  while (digits.length && !isdigit((unsigned char)*digits.from)) digits.from++, digits.length--;
  uint64_t bits = number(digits), bytes = bits / 8;
  bool packed = one.length > 2 && memchr(one.from, 'x', one.length) != NULL;
  return packed ? bytes * 4 : bits ? (bits + 7) / 8 : 0;
}

static bool is_name(token one) {
  return isalpha((unsigned char)*one.from) || *one.from == '_' || *one.from == '$';
}

/* Counts the values in braces at any depth. The count may be too high but never too low. */
static uint64_t count_values(text *t, bool *pointing) {
  uint64_t count = 1;
  int depth = 1;
  while (depth > 0) {
    token one = next(t);
    if (!one.length) break;
    if (*one.from == '{') depth++;
    if (*one.from == '}') depth--;
    if (*one.from == ',') count++;
    if (is_name(one)) *pointing = true;
  }
  return count;
}

typedef struct declared {
  uint64_t element_bytes, align, count;
  bool unsized; /* declared as `[]`, so the initial values determine the length */
} declared;

static uint64_t declared_bytes(const declared *d) {
  uint64_t bytes = product(d->element_bytes, d->count);
  uint64_t align = d->align ? d->align : 1;
  uint64_t padded = sum(bytes, align - 1);
  return padded == UINT64_MAX ? padded : padded - padded % align;
}

static void read_dimension(text *t, declared *d) {
  token one = next(t);
  if (!one.length || *one.from == ']') {
    d->unsized = true;
    return;
  }
  d->count = product(d->count, number(one));
  while (one.length && *one.from != ']' && *one.from != ';') one = next(t);
}

/* Reads what follows the state space: `.align n .v4 .type name[count] = {…}, another, …;` */
static uint64_t read_variables(text *t, bool *managed, bool *pointing) {
  uint64_t bytes = 0, vector = 1;
  bool initial = false; /* the next token is an initial value */
  declared d = {.count = 1};
  for (;;) {
    token one = next(t);
    if (!one.length) break;
    if (initial && is_name(one)) *pointing = true;
    if (*one.from == '=') initial = true;
    if (is(one, ".managed")) {
      *managed = true;
    } else if (is(one, ".align")) {
      d.align = number(next(t));
    } else if (is(one, ".v2") || is(one, ".v4") || is(one, ".v8")) {
      vector = (uint64_t)(one.from[2] - '0');
    } else if (type_bytes(one)) {
      d.element_bytes = product(type_bytes(one), vector);
    } else if (*one.from == '[') {
      read_dimension(t, &d);
    } else if (*one.from == '{') {
      uint64_t values = count_values(t, pointing);
      if (d.unsized) d.count = product(d.count, values);
    } else if (*one.from == ',' || *one.from == ';') {
      bytes = sum(bytes, declared_bytes(&d));
      d.count = 1;
      d.unsized = false;
      initial = false;
      if (*one.from == ';') break;
    }
  }
  return bytes;
}

void penstock_ptx_measure(const char *data, uint64_t length, penstock_image_size *size) {
  text t = {data, data + length};
  size->data_bytes = size->managed_bytes = 0;
  /* Depth of parentheses, which enclose parameters: `.ptr .global` there takes no memory. */
  int parentheses = 0;
  bool is_elsewhere = false;
  for (token one = next(&t); one.length; one = next(&t)) {
    if (*one.from == '(') parentheses++;
    if (*one.from == ')' && parentheses) parentheses--;
    if (*one.from == ';' || *one.from == '{' || *one.from == '}') {
      parentheses = 0;
      is_elsewhere = false;
    }
    if (is(one, ".extern")) is_elsewhere = true;
    if (parentheses == 0 && (is(one, ".global") || is(one, ".const"))) {
      bool managed = false;
      uint64_t more = read_variables(&t, &managed, &size->needs_code);
      uint64_t *bytes = managed ? &size->managed_bytes : &size->data_bytes;
      if (!is_elsewhere) *bytes = sum(*bytes, more);
      is_elsewhere = false;
    }
  }
}
