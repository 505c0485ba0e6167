// A program's file written byte by byte, for kinds that this machine cannot build and for damage that no linker causes.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace rota::test {

#if defined(__x86_64__)
inline constexpr Elf64_Half kThisMachine = EM_X86_64;
#else
inline constexpr Elf64_Half kThisMachine = EM_AARCH64;
#endif

struct MadeProgram {
  static constexpr std::uint64_t kDynamicAt = 0x800;  // in the file: a DT_NEEDED for each, DT_STRTAB, DT_STRSZ

  Elf64_Half machine = kThisMachine;
  bool loader = true;
  std::vector<std::string> needed = {"libc.so.6"};

  std::string bytes() const {
    constexpr std::uint64_t kAddress = 0x400000;
    std::string strings(1, '\0');
    std::vector<Elf64_Dyn> dynamic;
    for (const std::string& library : needed) {
      dynamic.push_back({.d_tag = DT_NEEDED, .d_un = {.d_val = strings.size()}});
      strings += library + '\0';
    }
    const std::uint64_t strings_at = 0x1000;
    dynamic.push_back({.d_tag = DT_STRTAB, .d_un = {.d_ptr = kAddress + strings_at}});
    dynamic.push_back({.d_tag = DT_STRSZ, .d_un = {.d_val = strings.size()}});
    dynamic.push_back({.d_tag = DT_NULL, .d_un = {}});
    std::vector<Elf64_Phdr> segments;
    const auto segment = [&](Elf64_Word type, std::uint64_t offset, std::uint64_t size) {
      Elf64_Phdr header{};
      header.p_type = type;
      header.p_offset = offset;
      header.p_vaddr = kAddress + offset;
      header.p_filesz = header.p_memsz = size;
      segments.push_back(header);
    };
    if (loader) segment(PT_INTERP, 0x700, 16);
    segment(PT_LOAD, 0, strings_at + strings.size());
    if (loader) segment(PT_DYNAMIC, kDynamicAt, dynamic.size() * sizeof(Elf64_Dyn));
    Elf64_Ehdr header{};
    memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_machine = machine;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = static_cast<Elf64_Half>(segments.size());
    std::string content(strings_at, '\0');
    memcpy(content.data(), &header, sizeof header);
    memcpy(content.data() + sizeof header, segments.data(), segments.size() * sizeof(Elf64_Phdr));
    memcpy(content.data() + kDynamicAt, dynamic.data(), dynamic.size() * sizeof(Elf64_Dyn));
    return content + strings;
  }
};

}  // namespace rota::test
