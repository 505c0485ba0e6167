// Writes account files as rota's core does, for tests of their reader and of what is made of them.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generated/driver_symbols.h"
#include "runtime/account/format.h"
#include "runtime/preload/symbol_list.h"
#include "tools/rota/report/account_file.h"

namespace rota::report {

constexpr std::uint64_t kMiB = 1U << 20;
constexpr std::int64_t kBegan = 1'700'000'000'000'000'000;  // on the wall
constexpr std::int64_t kSecond = 1'000'000'000;

class AccountBuilder {
 public:
  explicit AccountBuilder(std::uint32_t pid = 4'000'001, std::uint64_t start = 7)
      : words_((account::kHeaderBytes + account::kThreadPageBytes) / 8) {
    account::Header& head = header();
    std::memcpy(head.magic, account::kMagic, sizeof head.magic);
    head.version = account::kVersion;
    head.header_bytes = sizeof(account::Header);
    head.thread_page_bytes = sizeof(account::ThreadPage);
    head.symbol_count = kSymbolCount;
    head.symbol_list = kSymbolListHash;
    head.self.pid = pid;
    head.self.start_ticks = start;
    head.began_realtime_ns = kBegan;
    head.began_monotonic_ns = 5 * kSecond;
    head.thread_pages = 1;
    head.timeline_step_ns = static_cast<std::uint64_t>(kSecond);
    head.gpus[0].uuid[0] = 1;
    std::strcpy(head.gpus[0].name, "Test GPU");
  }

  account::Header& header() { return *reinterpret_cast<account::Header*>(words_.data()); }
  account::ThreadPage& thread() {
    return *reinterpret_cast<account::ThreadPage*>(words_.data() + account::kHeaderBytes / 8);
  }
  std::string name() { return std::to_string(header().self.pid) + "-" + std::to_string(header().self.start_ticks); }

  AccountBuilder& command(const std::string& program, const std::string& argument) {
    const std::string text = program + '\0' + argument + '\0';
    std::memcpy(header().self.command, text.data(), text.size());
    header().self.command_bytes = static_cast<std::uint32_t>(text.size());
    return *this;
  }
  AccountBuilder& calls(Symbol symbol, std::uint64_t count) {
    thread().calls[static_cast<std::size_t>(symbol)] = count;
    return *this;
  }
  AccountBuilder& error(Symbol symbol, std::uint32_t code, std::uint64_t count = 1) {
    account::Error& error = header().errors[errors_++];
    error.function = static_cast<std::uint32_t>(symbol);
    error.code = code;
    error.calls = count;
    return *this;
  }
  AccountBuilder& finding(account::FindingKind kind, Symbol function, Symbol ended_by) {
    account::Finding& finding = header().findings[findings_++];
    finding.kind = static_cast<std::uint32_t>(kind);
    finding.function = static_cast<std::uint32_t>(function);
    finding.ended_by = static_cast<std::uint32_t>(ended_by);
    finding.calls = 1;
    finding.value = 0xbeef;
    return *this;
  }
  AccountBuilder& module(const std::string& path, std::uint64_t live_bytes) {
    account::Module& module = header().modules[header().module_count++];
    std::strcpy(module.path, path.c_str());
    module.allocations = 3;
    module.live = live_bytes == 0 ? 0 : 1;
    module.live_bytes = live_bytes;
    return *this;
  }
  AccountBuilder& level(double second, std::uint64_t most, std::uint64_t least) {
    account::Level& level = header().levels[header().level_count++];
    level.since_ns = static_cast<std::uint64_t>(header().began_monotonic_ns) +
                     static_cast<std::uint64_t>(second * static_cast<double>(kSecond));
    level.most_bytes = most;
    level.least_bytes = least;
    header().gpus[0].used_peak_bytes = std::max(header().gpus[0].used_peak_bytes.load(), most);
    return *this;
  }
  // The memory in use in each second, from the process's start.
  AccountBuilder& memory(const std::vector<std::uint64_t>& seconds) {
    std::uint64_t peak = 0;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      level(static_cast<double>(i), seconds[i], seconds[i]);
      header().timeline[i].busy_us = 1;
      peak = std::max(peak, seconds[i]);
    }
    header().gpus[0].used_peak_bytes = peak;
    header().gpus[0].kinds[0].peak_bytes = peak;
    if (!seconds.empty()) header().gpus[0].used_bytes = seconds.back();
    return *this;
  }
  AccountBuilder& began(std::int64_t seconds_later) {
    header().began_realtime_ns = kBegan + seconds_later * kSecond;
    return *this;
  }
  AccountBuilder& exited(std::int64_t after_seconds) {
    header().ended_monotonic_ns = header().began_monotonic_ns + after_seconds * kSecond;
    return *this;
  }

  // Writes the file, cut off after `bytes` if given.
  std::string write(const std::filesystem::path& folder, std::optional<std::size_t> bytes = std::nullopt) {
    std::filesystem::create_directories(folder);
    const std::string path = (folder / (name() + ".account")).string();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(words_.data()),
               static_cast<std::streamsize>(bytes.value_or(words_.size() * 8)));
    return path;
  }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t errors_ = 0;
  std::size_t findings_ = 0;
};

// A folder that is removed with this object.
class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = (std::filesystem::temp_directory_path() / "rota-report-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::filesystem::path path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace rota::report
