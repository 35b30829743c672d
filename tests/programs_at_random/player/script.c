/* Reading a script. */
#include "player.h"

static void refuse(int number, const char *why, const char *text) {
  fprintf(stderr, "line %d of the script: %s: %s", number, why, text);
  exit(2);
}

static void read_process(script *s, int number, const char *text) {
  int which, threads, first, last;
  char end[8];
  if (sscanf(text, "process %d threads %d first %d last %d end %7s", &which, &threads, &first,
             &last, end) != 5 ||
      which != s->processes || which >= MOST_PROCESSES || threads < 1 || threads > MOST_THREADS)
    refuse(number, "not a process", text);
  s->process[s->processes++] = (script_process){threads, first, last, !strcmp(end, "kill")};
}

static void read_operation(script *s, int number, const char *text) {
  line l = {.number = number, .phase = s->phases};
  char name[24];
  int at = 0;
  if (sscanf(text, "%d.%d %23s%n", &l.process, &l.thread, name, &at) != 3)
    refuse(number, "not an operation", text);
  l.operation = operation_named(name);
  if (!l.operation) refuse(number, "no such operation", text);
  int count = operation_argument_count(l.operation);
  for (int i = 0; i < count; i++) {
    char *end;
    l.arguments[i] = strtol(text + at, &end, 10);
    if (end == text + at) refuse(number, "too few arguments", text);
    at = (int)(end - text);
  }
  if (l.process >= s->processes || l.thread >= s->process[l.process].threads)
    refuse(number, "no such thread", text);
  s->lines = realloc(s->lines, (size_t)(s->line_count + 1) * sizeof *s->lines);
  s->lines[s->line_count++] = l;
}

void script_read(const char *path, script *s) {
  FILE *file = fopen(path, "re");
  if (!file) {
    perror(path);
    exit(2);
  }
  char text[256];
  for (int number = 1; fgets(text, sizeof text, file); number++) {
    text[strcspn(text, "#\n")] = 0;
    if (!strncmp(text, "process ", 8)) {
      read_process(s, number, text);
    } else if (!strncmp(text, "quiet", 5)) {
      if (++s->phases >= MOST_PHASES) refuse(number, "too many quiet points", text);
    } else if (!strncmp(text, "channels ", 9)) {
      s->channels = atoi(text + 9);
      if (s->channels > MOST_CHANNELS) refuse(number, "too many channels", text);
    } else if (text[strspn(text, " ")]) {
      read_operation(s, number, text);
    }
  }
  fclose(file);
}
