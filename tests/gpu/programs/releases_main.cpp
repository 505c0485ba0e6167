// A program of one CUDA release, or (as a shared library) the part of a program that uses several.
#include <exception>
#include <string_view>

#include "releases.h"

extern "C" int run_release(const char** text) {
  static releases::Report report;
  int result = 0;
  try {
    releases::run_runtime(report);
    releases::run_driver(report);
  } catch (const std::exception& error) {
    report.line("failed: %s", error.what());
    result = 1;
  }
  *text = report.text().c_str();
  return result;
}

// program [driver]: `driver` leaves the runtime out.
#ifndef RELEASES_LIBRARY
int main(int count, char** arguments) {
  const char* text = "";
  int result = 0;
  releases::Report report;
  if (count > 1 && std::string_view(arguments[1]) == "driver") {
    try {
      releases::run_driver(report);
      text = report.text().c_str();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "failed: %s\n", error.what());
      return 1;
    }
  } else {
    result = run_release(&text);
  }
  std::printf("%s%s\n", text, result == 0 ? "ok" : "");
  return result;
}
#endif
