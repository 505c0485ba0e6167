// One process, several libcudarts: two_majors LIBRARY… loads each (a program of one release as a shared library, with
// its own libcudart), keeps them apart (RTLD_LOCAL), and runs them one behind the other, then all at once.
#include <dlfcn.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

using Run = int(const char**);

struct Part {
  Run* run;
  std::string text;
  int result;
};

static void run(Part& part) {
  const char* text = "";
  part.result = part.run(&text);
  part.text = text;
}

int main(int count, char** arguments) {
  std::vector<Part> parts;
  for (int i = 1; i < count; ++i) {
    void* const library = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "failed: %s\n", dlerror());
      return 1;
    }
    parts.push_back({reinterpret_cast<Run*>(dlsym(library, "run_release")), "", 1});
  }
  for (Part& part : parts) run(part);
  std::vector<std::thread> threads;
  for (Part& part : parts) threads.emplace_back(run, std::ref(part));
  for (std::thread& thread : threads) thread.join();
  int failed = 0;
  for (const Part& part : parts) {
    std::printf("%s", part.text.c_str());
    failed += part.result;
  }
  std::printf("%s\n", failed == 0 ? "ok" : "");
  return failed;
}
