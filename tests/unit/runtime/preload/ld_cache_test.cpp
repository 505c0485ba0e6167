// Reading /etc/ld.so.cache: files built here byte by byte, whole and damaged.
#include "runtime/preload/cuda/ld_cache.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

using rota::thin::next_in_ld_cache;

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kOurs = 0x0303;
#else
constexpr std::uint32_t kOurs = 0x0a03;
#endif
constexpr std::uint32_t k32Bit = 0x0003;

struct Entry {
  std::uint32_t flags;
  std::string name;
  std::string path;
};

void append(std::string& to, std::uint32_t word) {
  to.append(reinterpret_cast<const char*>(&word), sizeof word);
}

// The newer table alone, as ldconfig has written it since glibc 2.32.
std::string cache_of(const std::vector<Entry>& entries) {
  std::string strings;
  std::string table;
  const std::size_t strings_at = 48 + 24 * entries.size();
  for (const Entry& entry : entries) {
    append(table, entry.flags);
    append(table, static_cast<std::uint32_t>(strings_at + strings.size()));
    strings += entry.name + '\0';
    append(table, static_cast<std::uint32_t>(strings_at + strings.size()));
    strings += entry.path + '\0';
    table.append(12, '\0');
  }
  std::string file = "glibc-ld.so.cache1.1";
  append(file, static_cast<std::uint32_t>(entries.size()));
  append(file, static_cast<std::uint32_t>(strings.size()));
  file.append(48 - file.size(), '\0');
  return file + table + strings;
}

std::vector<std::string> all(const std::string& file, const char* name = "libcuda.so.1") {
  // A buffer of exactly that size, so that a sanitizer sees a read behind it.
  std::vector<char> exact(file.begin(), file.end());
  std::vector<std::string> found;
  std::uint32_t cursor = 0;
  while (const char* path = next_in_ld_cache(exact.data(), exact.size(), name, &cursor)) found.emplace_back(path);
  return found;
}

const std::vector<Entry> kEntries = {{kOurs, "libc.so.6", "/lib/libc.so.6"},
                                     {k32Bit, "libcuda.so.1", "/lib32/libcuda.so.1"},
                                     {kOurs, "libcuda.so.1", "/usr/lib64/libcuda.so.1"},
                                     {kOurs, "libcuda.so.1", "/opt/driver/libcuda.so.1"},
                                     {kOurs, "libcuda.so", "/usr/lib64/libcuda.so"}};
const std::vector<std::string> kWanted = {"/usr/lib64/libcuda.so.1", "/opt/driver/libcuda.so.1"};

}  // namespace

TEST_CASE("the entries of a name for this machine come in order") {
  REQUIRE(all(cache_of(kEntries)) == kWanted);
  REQUIRE(all(cache_of(kEntries), "libnothing.so.1").empty());
}

TEST_CASE("the newer table is found behind the older one") {
  std::string older = "ld.so-1.7.0";
  older.append(12 - older.size(), '\0');
  append(older, 3);
  older.append(3 * 12, 'x');
  older.append((8 - older.size() % 8) % 8, '\0');
  REQUIRE(all(older + cache_of(kEntries)) == kWanted);
}

TEST_CASE("a cache cut short anywhere gives what is whole or nothing, and no read behind its end") {
  const std::string whole = cache_of(kEntries);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto found = all(whole.substr(0, size));
    REQUIRE(found.size() <= kWanted.size());
    for (const auto& path : found) REQUIRE((path == kWanted[0] || path == kWanted[1]));
  }
}

TEST_CASE("a cache with wrong counts and offsets gives nothing, and no read outside it") {
  for (std::size_t at = 20; at < 48 + 24 * kEntries.size(); ++at) {
    for (const char value : {'\x7f', '\xff'}) {
      std::string damaged = cache_of(kEntries);
      damaged[at] = value;
      REQUIRE(all(damaged).size() <= kEntries.size());
    }
  }
  std::string older = "ld.so-1.7.0";
  older.append(12 - older.size(), '\0');
  append(older, 0xffffffffU);
  REQUIRE(all(older + cache_of(kEntries)).empty());
}

TEST_CASE("an entry without an absolute path is passed over") {
  REQUIRE(all(cache_of({{kOurs, "libcuda.so.1", "libcuda.so.1"}, {kOurs, "libcuda.so.1", "/a/libcuda.so.1"}})) ==
          std::vector<std::string>{"/a/libcuda.so.1"});
}
