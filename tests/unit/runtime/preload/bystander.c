// A program that has nothing to do with CUDA, in C so that it brings no libstdc++: prints what is mapped into it. With a
// word it opens the library of that name first, and calls nothing of it.
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** words) {
  if (count > 1 && dlopen(words[1], RTLD_NOW) == NULL) {
    fprintf(stderr, "bystander: %s\n", dlerror());
    return 3;
  }
  FILE* maps = fopen("/proc/self/maps", "r");
  if (maps == NULL) return 3;
  for (int byte = fgetc(maps); byte != EOF; byte = fgetc(maps)) putchar(byte);
  fclose(maps);
  return 0;
}
