/* penstock-aside performs operations for its parent that may never return, such as reading a
 * process that holds its own locks, or changing a file that its owner has locked. A thread that
 * waits in the kernel for such a lock cannot be killed, so these threads belong to this process
 * instead of to the parent.
 *
 * Requests arrive on descriptor 0, a stream socket, and answers are sent there (struct request and
 * struct answer). A request that takes longer than PATIENCE_MS fails with ETIMEDOUT. While its
 * thread is still blocked, a repetition of the same request fails at once. When all threads are
 * blocked, requests fail with EBUSY. When the parent closes its end of the socket, the process
 * exits without waiting for blocked threads. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/nsfs.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define THREADS 128          /* maximum number of threads, including blocked ones */
#define AT_WORK 16           /* number of threads that are kept unblocked */
#define PATIENCE_MS 20       /* time limit for a read, which usually takes a few microseconds */
#define FILE_PATIENCE_MS 200 /* time limit for a change of a file */
#define STACK_BYTES (256u << 10)
#define LONGEST_PATH 4096u
/* first part of the names of the environment variables that are returned */
#define PREFIX "PENSTOCK_"

enum what {
  STAT,
  ENVIRON,
  CMDLINE,
  MAPS,
  SMAPS_ROLLUP,
  NS_PID,
  NS_TIME,
  MOUNTER,
  READS,
  CUT = READS,
  REMOVE,
  OWN,
  KINDS
};
static const struct {
  const char *name;
  size_t most_bytes;
} files[READS] = {
    {"stat", 8 << 10},         {"environ", 256 << 10}, {"cmdline", 4 << 10}, {"maps", 1 << 20},
    {"smaps_rollup", 8 << 10}, {"ns/pid", 64},         {"ns/time", 64},      {"ns/mnt", 128}};

struct request {
  uint32_t id;
  uint32_t what;
  int64_t number; /* the process ID if what <= READS, the new size for CUT, the mode for OWN */
  uint32_t path_bytes;
  uint32_t unused;
  /* followed by the path */
};

struct answer {
  uint32_t id;
  int32_t error; /* errno, 0 on success */
  int64_t number;
  uint64_t bytes;
  /* followed by `bytes` bytes */
};

struct task {
  struct request request;
  struct task *next;
  char path[];
};

static struct worker {
  struct task *task; /* NULL if idle */
  uint64_t since_ms;
  bool is_given_up; /* the task has been answered with ETIMEDOUT */
} workers[THREADS];
static unsigned worker_count, given_up;
static struct task *first, **last = &first;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* guards the variables above */
static pthread_cond_t work_came = PTHREAD_COND_INITIALIZER, busy = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool write_all(const void *from, size_t bytes) {
  const char *next = from;
  while (bytes) {
    ssize_t written = write(STDIN_FILENO, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    next += written;
    bytes -= (size_t)written;
  }
  return true;
}

static bool read_all(void *into, size_t bytes) {
  char *next = into;
  while (bytes) {
    ssize_t got = read(STDIN_FILENO, next, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    bytes -= (size_t)got;
  }
  return true;
}

static void answer(const struct request *to, int error, const char *text, size_t bytes) {
  struct answer head = {.id = to->id, .error = error, .number = to->number, .bytes = bytes};
  pthread_mutex_lock(&output);
  bool written = write_all(&head, sizeof head) && write_all(text, bytes);
  pthread_mutex_unlock(&output);
  if (!written) _exit(0); /* the parent has ended */
}

/* Keeps only the variables of an environment whose names begin with PREFIX, each after a zero byte.
 * Leaves a single zero byte if there are no such variables, and nothing if the environment is
 * empty. */
static size_t pick_variables(char *text, size_t bytes) {
  char *kept = malloc(bytes + 2);
  if (!kept) return 0;
  size_t length = 0;
  if (bytes) kept[length++] = 0;
  for (size_t at = 0; at < bytes;) {
    size_t size = strnlen(text + at, bytes - at);
    if (!strncmp(text + at, PREFIX, sizeof PREFIX - 1)) {
      memcpy(kept + length, text + at, size);
      length += size;
      kept[length++] = 0;
    }
    at += size + 1;
  }
  if (length > bytes) length = bytes;
  memcpy(text, kept, length);
  free(kept);
  return length;
}

/* Opens the mount namespace of a living thread of process `pid`. Returns -1 with errno on failure.
 * All threads are tried, because the main thread may end before the others and then has no
 * namespace. */
static int open_mounts(long long pid, long *thread) {
  char path[64];
  *thread = (long)pid;
  snprintf(path, sizeof path, "/proc/%lld/ns/mnt", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0 || errno != ENOENT) return fd;
  snprintf(path, sizeof path, "/proc/%lld/task", pid);
  DIR *threads = opendir(path);
  if (!threads) return -1;
  for (struct dirent *one; fd < 0 && (one = readdir(threads));) {
    if (!(*thread = strtol(one->d_name, NULL, 10))) continue;
    snprintf(path, sizeof path, "/proc/%lld/task/%ld/ns/mnt", pid, *thread);
    fd = open(path, O_RDONLY | O_CLOEXEC);
  }
  closedir(threads);
  errno = ENOENT;
  return fd;
}

/* Writes four numbers as text: the mount namespace, the thread that it was read from, the user
 * namespace that owns it, and the owner of that user namespace. The last two are -1 if the user
 * namespace is not visible to this process. */
static int read_mounter(long long pid, char *text, size_t room) {
  struct stat mounts, users = {0};
  long thread;
  uid_t owner = (uid_t)-1;
  int fd = open_mounts(pid, &thread);
  if (fd < 0) return errno;
  int users_fd = ioctl(fd, NS_GET_USERNS);
  bool is_known = users_fd >= 0 && !fstat(users_fd, &users);
  if (is_known && ioctl(users_fd, NS_GET_OWNER_UID, &owner)) owner = (uid_t)-1;
  int error = fstat(fd, &mounts) ? errno : 0;
  snprintf(text, room, "%llu %ld %lld %lld", (unsigned long long)mounts.st_ino, thread,
           is_known ? (long long)users.st_ino : -1, owner == (uid_t)-1 ? -1 : (long long)owner);
  if (users_fd >= 0) close(users_fd);
  close(fd);
  return error;
}

/* Reads one file of a process into `*text`, which the caller frees. */
static int read_file(const struct request *wanted, char **text, size_t *bytes) {
  char path[64];
  size_t most = files[wanted->what].most_bytes, room = 16 << 10;
  snprintf(path, sizeof path, "/proc/%lld/%s", (long long)wanted->number, files[wanted->what].name);
  int error = 0;
  if (!(*text = malloc(room))) return ENOMEM;
  if (wanted->what == MOUNTER) {
    error = read_mounter(wanted->number, *text, room);
    *bytes = error ? 0 : strlen(*text);
    return error;
  }
  if (wanted->what == NS_PID || wanted->what == NS_TIME) {
    ssize_t length = readlink(path, *text, most);
    *bytes = length < 0 ? 0 : (size_t)length;
    return length < 0 ? errno : 0;
  }
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  while (!error && *bytes < most) {
    if (*bytes == room) {
      char *more = realloc(*text, room *= 2);
      if (!more) error = ENOMEM;
      if (!more) break;
      *text = more;
    }
    size_t left = most < room ? most - *bytes : room - *bytes;
    ssize_t got = read(fd, *text + *bytes, left);
    if (got < 0) error = errno;
    if (got <= 0) break;
    *bytes += (size_t)got;
  }
  close(fd);
  return error;
}

/* Removes the extended attributes in the user namespace, because they take up space in addition to
 * the file's contents. */
static void remove_user_attributes(int fd) {
  char names[64 << 10];
  ssize_t bytes = flistxattr(fd, names, sizeof names);
  for (ssize_t at = 0; at < bytes; at += (ssize_t)strlen(names + at) + 1)
    if (!strncmp(names + at, "user.", 5)) fremovexattr(fd, names + at);
}

static int cut(const char *path, int64_t bytes) {
  /* may be a link such as /proc/PID/fd/N */
  int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = ftruncate(fd, bytes) ? errno : 0;
  remove_user_attributes(fd);
  close(fd);
  return error;
}

static int own(const char *path, mode_t mode) {
  return chown(path, geteuid(), (gid_t)-1) || chmod(path, mode) ? errno : 0;
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *where) {
  (void)found, (void)kind, (void)where;
  remove(path);
  return 0;
}

static void carry_out(struct worker *self, struct task *task) {
  char *text = NULL;
  size_t bytes = 0;
  int error;
  if (task->request.what == CUT)
    error = cut(task->path, task->request.number);
  else if (task->request.what == OWN)
    error = own(task->path, (mode_t)task->request.number);
  else if (task->request.what == REMOVE)
    error = nftw(task->path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) ? errno : 0;
  else
    error = read_file(&task->request, &text, &bytes);
  if (!error && task->request.what == ENVIRON) bytes = pick_variables(text, bytes);
  pthread_mutex_lock(&guard);
  bool is_late = self->is_given_up;
  if (is_late) given_up--;
  self->is_given_up = false;
  self->task = NULL;
  pthread_mutex_unlock(&guard);
  if (!is_late) answer(&task->request, error, error ? NULL : text, error ? 0 : bytes);
  free(text);
  free(task);
}

static bool is_same(const struct task *one, const struct task *other) {
  if (one->request.what != other->request.what) return false;
  if (one->request.what >= READS) return !strcmp(one->path, other->path);
  return one->request.number == other->request.number;
}

/* Returns whether a thread is already blocked on the same request. The caller holds `guard`. */
static bool is_waited_for(const struct task *task) {
  for (unsigned i = 0; i < worker_count; i++)
    if (workers[i].is_given_up && is_same(workers[i].task, task)) return true;
  return false;
}

static void *work(void *argument) {
  struct worker *self = argument;
  pthread_mutex_lock(&guard);
  for (;;) {
    while (!first) pthread_cond_wait(&work_came, &guard);
    struct task *task = first;
    if (!(first = task->next)) last = &first;
    bool refused = given_up && is_waited_for(task);
    if (!refused) {
      self->task = task;
      self->since_ms = now_ms();
      pthread_cond_signal(&busy);
    }
    pthread_mutex_unlock(&guard);
    if (refused) {
      answer(&task->request, ETIMEDOUT, NULL, 0);
      free(task);
    } else {
      carry_out(self, task);
    }
    pthread_mutex_lock(&guard);
  }
  return NULL;
}

/* Starts threads until AT_WORK of them are not blocked. The caller holds `guard`. */
static void start_threads(void) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  while (worker_count < THREADS && worker_count - given_up < AT_WORK) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, &workers[worker_count])) break;
    pthread_detach(thread);
    worker_count++;
  }
  pthread_attr_destroy(&attributes);
}

/* Answers the tasks that have taken too long. The caller holds `guard`, which is released in the
 * meantime. */
static bool give_up_late_ones(void) {
  struct request late[THREADS];
  unsigned count = 0, at_work = 0;
  for (unsigned i = 0; i < worker_count; i++) {
    struct worker *one = &workers[i];
    if (!one->task || one->is_given_up) continue;
    uint64_t patience_ms = one->task->request.what < READS ? PATIENCE_MS : FILE_PATIENCE_MS;
    at_work++;
    if (now_ms() - one->since_ms < patience_ms) continue;
    one->is_given_up = true;
    given_up++;
    late[count++] = one->task->request;
  }
  start_threads();
  struct task *refused = NULL;
  if (given_up == worker_count && worker_count == THREADS) {
    refused = first;
    first = NULL;
    last = &first;
  }
  pthread_mutex_unlock(&guard);
  for (unsigned i = 0; i < count; i++) answer(&late[i], ETIMEDOUT, NULL, 0);
  while (refused) {
    struct task *next = refused->next;
    answer(&refused->request, EBUSY, NULL, 0);
    free(refused);
    refused = next;
  }
  pthread_mutex_lock(&guard);
  return at_work || first;
}

static void *watch(void *unused) {
  (void)unused;
  pthread_mutex_lock(&guard);
  for (;;) {
    while (give_up_late_ones()) {
      pthread_mutex_unlock(&guard);
      nanosleep(&(struct timespec){.tv_nsec = PATIENCE_MS * 250000}, NULL);
      pthread_mutex_lock(&guard);
    }
    pthread_cond_wait(&busy, &guard);
  }
  return NULL;
}

static struct task *next_request(void) {
  struct request head;
  if (!read_all(&head, sizeof head)) return NULL;
  if (head.path_bytes > LONGEST_PATH || head.what >= KINDS) return NULL;
  struct task *task = malloc(sizeof *task + head.path_bytes + 1);
  if (!task) return NULL;
  task->request = head;
  task->next = NULL;
  if (!read_all(task->path, head.path_bytes)) return NULL;
  task->path[head.path_bytes] = 0;
  return task;
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGINT, SIG_IGN); /* a terminal's interrupt is meant for the parent */
  pthread_t watcher;
  pthread_mutex_lock(&guard);
  start_threads();
  pthread_mutex_unlock(&guard);
  if (pthread_create(&watcher, NULL, watch, NULL)) return 1;
  struct task *task;
  while ((task = next_request())) {
    pthread_mutex_lock(&guard);
    *last = task;
    last = &task->next;
    pthread_cond_signal(&work_came);
    pthread_cond_signal(&busy); /* the watcher answers the task if all threads are blocked */
    pthread_mutex_unlock(&guard);
  }
  _exit(0); /* exits without waiting for blocked threads */
}
