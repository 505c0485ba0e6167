// Maps a file, as a loader maps a library, and waits until standard input ends. Linked statically as well: a program that
// no preload reaches.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char** argv) {
  const int file = open(argc > 1 ? argv[1] : "", O_RDONLY | O_CLOEXEC);
  if (file < 0 || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED) return 1;
  puts("ready");
  fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  return 0;
}
