// What products use of libstdc++ and the C library, in small: cmake/glibc.cmake asks whether it links with the stubs.
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

int main(int argc, char** argv) {
  double number = std::random_device()();
  std::from_chars(argv[0], argv[0] + argc, number);
  std::mutex mutex;
  std::condition_variable_any changed;
  std::jthread thread([&](std::stop_token stop) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, stop, std::chrono::milliseconds(1), [] { return false; });
  });
  std::cout << std::ifstream(argv[0]).good() << number << std::filesystem::directory_entry(argv[0]).is_symlink()
            << std::filesystem::file_size(argv[0]) << '\n';
}
