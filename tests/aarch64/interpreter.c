// What the kernel starts for an aarch64 program inside of with_qemu: qemu-user with the cross compiler's C library as the
// program's, whatever the environment says. Arguments, as binfmt_misc gives them with its flag P: this file, the program's
// path, its own argv[0], its arguments.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char** given) {
  if (count < 3) {
    fputs("interpreter: to be started by the kernel (tests/aarch64/with_qemu)\n", stderr);
    return 2;
  }
  char** arguments = calloc((size_t)count + 5, sizeof *arguments);
  if (arguments == NULL) return 126;
  char** next = arguments;
  *next++ = "qemu-aarch64-static";
  *next++ = "-L";
  *next++ = "/usr/aarch64-linux-gnu";
  *next++ = "-0";
  *next++ = given[2];
  *next++ = given[1];
  for (int index = 3; index < count; ++index) *next++ = given[index];
  execv("/usr/bin/qemu-aarch64-static", arguments);
  perror("/usr/bin/qemu-aarch64-static");
  return 126;
}
