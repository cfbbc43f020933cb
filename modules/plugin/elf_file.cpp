#include "elf_file.hpp"

#include <elf.h>

#include <cstring>
#include <string_view>

#include "tessera/plugin_gate.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera::plugin {
namespace {

using Bytes = std::span<const std::byte>;

#if defined(__x86_64__)
constexpr unsigned this_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned this_machine = EM_AARCH64;
#else
#error "plugins: name this machine's ELF number here"
#endif

bool inside(Bytes file, std::uint64_t offset, std::uint64_t size) {
  return offset <= file.size() && size <= file.size() - offset;
}

/// A copy of the struct at `offset`, which the caller has checked; files need not be aligned.
template <class T>
T read_at(Bytes file, std::uint64_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

std::string check_header(Bytes file, const Elf64_Ehdr& header) {
  if (header.e_ident[EI_CLASS] != ELFCLASS64) {
    return "ELF header: not a 64-bit library";
  }
  if (header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return "ELF header: not little-endian";
  }
  if (header.e_ident[EI_VERSION] != EV_CURRENT || header.e_version != EV_CURRENT) {
    return "ELF header: unknown version of ELF";
  }
  if (header.e_ident[EI_OSABI] != ELFOSABI_SYSV && header.e_ident[EI_OSABI] != ELFOSABI_GNU) {
    return "ELF header: made for another operating system";
  }
  if (header.e_machine != this_machine) {
    return "ELF header: made for another processor (host has machine " +
           std::to_string(this_machine) + ", library has " + std::to_string(header.e_machine) + ")";
  }
  if (header.e_type != ET_DYN) {
    return "ELF header: not a shared library";
  }
  if (header.e_ehsize != sizeof(Elf64_Ehdr) || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    return "ELF header: sizes of headers are not those of ELF64";
  }
  if (!inside(file, header.e_phoff, std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) {
    return "ELF header: program headers lie outside of the file (is it cut?)";
  }
  if (header.e_shnum == 0 ||
      !inside(file, header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr))) {
    return "ELF header: section headers lie outside of the file (is it cut?)";
  }
  if (header.e_shstrndx >= header.e_shnum) {
    return "ELF header: the table of section names is not a section";
  }
  return "";
}

/// What dlopen would trust: every segment must lie inside the file.
std::string check_segments(Bytes file, const Elf64_Ehdr& header) {
  bool dynamic = false;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto segment =
        read_at<Elf64_Phdr>(file, header.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
    if (segment.p_type == PT_LOAD && segment.p_filesz > segment.p_memsz) {
      return "program header " + std::to_string(i) + ": larger in the file than in memory";
    }
    if ((segment.p_type == PT_LOAD || segment.p_type == PT_DYNAMIC) &&
        !inside(file, segment.p_offset, segment.p_filesz)) {
      return "program header " + std::to_string(i) + ": lies outside of the file (is it cut?)";
    }
    dynamic = dynamic || segment.p_type == PT_DYNAMIC;
  }
  return dynamic ? "" : "program headers: no dynamic segment";
}

}  // namespace

std::string locate_stamp(Bytes file, StampPlace& place) {
  if (file.size() < SELFMAG || std::memcmp(file.data(), ELFMAG, SELFMAG) != 0) {
    return "not an ELF file";
  }
  if (file.size() < sizeof(Elf64_Ehdr)) {
    return "ELF header: cut off";
  }
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  if (std::string refusal = check_header(file, header); !refusal.empty()) {
    return refusal;
  }
  if (std::string refusal = check_segments(file, header); !refusal.empty()) {
    return refusal;
  }
  const auto section = [&](unsigned i) {
    return read_at<Elf64_Shdr>(file, header.e_shoff + std::uint64_t{i} * sizeof(Elf64_Shdr));
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  if (names.sh_type != SHT_STRTAB || !inside(file, names.sh_offset, names.sh_size)) {
    return "section names: lie outside of the file (is it cut?)";
  }
  const std::string_view table(reinterpret_cast<const char*>(file.data()) + names.sh_offset,
                               names.sh_size);
  bool found = false;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr candidate = section(i);
    if (candidate.sh_name >= table.size()) {
      return "section " + std::to_string(i) + ": its name lies outside of the table of names";
    }
    const std::string_view rest = table.substr(candidate.sh_name);
    if (rest.substr(0, rest.find('\0')) != TESSERA_PLUGIN_SECTION) {
      continue;
    }
    if (found) {
      return "section " TESSERA_PLUGIN_SECTION ": occurs twice";
    }
    if (candidate.sh_type != SHT_PROGBITS ||
        !inside(file, candidate.sh_offset, candidate.sh_size)) {
      return "section " TESSERA_PLUGIN_SECTION ": lies outside of the file (is it cut?)";
    }
    found = true;
    place = {candidate.sh_offset, candidate.sh_size};
  }
  return found ? ""
               : "not a plugin: no section " TESSERA_PLUGIN_SECTION
                 " (build it with tessera_add_plugin)";
}

Digest content_digest(Bytes file, std::size_t digest_offset) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  const Digest zeros{};
  const std::size_t after = digest_offset + zeros.size();
  XXH3_128bits_update(state, file.data(), digest_offset);
  XXH3_128bits_update(state, zeros.data(), zeros.size());
  XXH3_128bits_update(state, file.data() + after, file.size() - after);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
  XXH3_freeState(state);
  Digest digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace tessera::plugin
