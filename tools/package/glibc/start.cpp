// How a program starts that is linked with stubs of an older glibc. crt1.o of 2.34 and later leaves it to the C library
// to run the program's constructors; libraries before that left it to a function of crt1.o's own, and would run none.
// Newer libraries call the function where they are given one, and run nothing themselves then.
extern "C" {

using Main = int(int, char**, char**);
using Constructor = void(int, char**, char**);

extern Constructor* __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor* __init_array_end[] __attribute__((visibility("hidden")));
void _init();

int __real___libc_start_main(Main* main, int argc, char** argv, Constructor* construct, void (*end)(),
                             void (*end_of_loader)(), void* end_of_stack);

static void construct(int argc, char** argv, char** environment) {
  _init();
  for (Constructor** each = __init_array_start; each != __init_array_end; ++each) (*each)(argc, argv, environment);
}

__attribute__((visibility("hidden"))) int __wrap___libc_start_main(Main* main, int argc, char** argv,
                                                                   Constructor* given, void (*end)(),
                                                                   void (*end_of_loader)(), void* end_of_stack) {
  return __real___libc_start_main(main, argc, argv, given != nullptr ? given : &construct, end, end_of_loader,
                                  end_of_stack);
}

}  // extern "C"
