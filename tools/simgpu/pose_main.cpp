// simgpu-driver: the command that writes a posed driver (pose.h).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tools/simgpu/pose.h"

int main(int argc, char** argv) {
  std::string version_text;
  std::string output;
  std::string library = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libcuda.so.1";
  CLI::App app("Writes a libcuda.so.1 of the simulated GPU that poses as the driver of one CUDA version.",
               "simgpu-driver");
  app.add_option("--version", version_text, "CUDA version, such as 12.4")->required();
  app.add_option("-o,--output", output, "where to write it, such as 12.4/libcuda.so.1")->required();
  app.add_option("--library", library, "simgpu's libcuda.so.1 as built; by default the one next to this program");
  CLI11_PARSE(app, argc, argv);

  const int version = rota::sim::parse_driver_version(version_text);
  const std::string problem = version == 0
                                  ? "--version is '" + version_text + "': give a CUDA version from 6.0 on, such as 12.4"
                                  : rota::sim::write_posed_driver(library, version, output);
  if (problem.empty()) return 0;
  std::fprintf(stderr, "simgpu-driver: %s\n", problem.c_str());
  return 1;
}
