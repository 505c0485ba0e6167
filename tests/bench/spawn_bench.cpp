// What the preload costs a process that never uses CUDA: /bin/true with and without it, in alternating pairs.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int kPairs = 400;

double spawn_us(char* const environment[]) {
  char* arguments[] = {const_cast<char*>("/bin/true"), nullptr};
  const auto begin = std::chrono::steady_clock::now();
  pid_t child = 0;
  if (posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environment) != 0) std::exit(1);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) std::exit(1);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    fmt::print(stderr, "usage: spawn_bench LIBRARY[:LIBRARY…]\n");
    return 2;
  }
  std::string preload = std::string("LD_PRELOAD=") + arguments[1];
  char* with[] = {preload.data(), nullptr};
  char* without[] = {nullptr};
  std::vector<double> plain, preloaded, differences;
  for (int pair = -20; pair < kPairs; ++pair) {
    double a, b;
    if (pair % 2 == 0) {
      a = spawn_us(without);
      b = spawn_us(with);
    } else {
      b = spawn_us(with);
      a = spawn_us(without);
    }
    if (pair < 0) continue;
    plain.push_back(a);
    differences.push_back(b - a);
  }
  std::sort(plain.begin(), plain.end());
  std::sort(differences.begin(), differences.end());
  // Median, and its 95% interval from the order statistics.
  const auto n = static_cast<double>(kPairs);
  const auto low = static_cast<std::size_t>(n / 2 - 0.98 * std::sqrt(n));
  const auto high = static_cast<std::size_t>(n / 2 + 0.98 * std::sqrt(n));
  const double median = differences[kPairs / 2];
  fmt::print(
      "{:<42} direct {:7.0f} us   preloaded    {:+7.0f} us [{:.0f}, {:.0f}]   ratio {:.2f}   target +100 us  {}\n",
      "process without CUDA (/bin/true)", plain[kPairs / 2], median, differences[low], differences[high],
      (plain[kPairs / 2] + median) / plain[kPairs / 2], median <= 100 ? "met" : "MISSED");
  return 0;
}
