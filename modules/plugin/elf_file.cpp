#include "elf_file.hpp"

#include <elf.h>

#include <cstring>
#include <string_view>
#include <utility>

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
    return "ELF header: built for another operating system";
  }
  if (header.e_machine != this_machine) {
    return "ELF header: built for another processor (host has machine " +
           std::to_string(this_machine) + ", library has " + std::to_string(header.e_machine) + ")";
  }
  if (header.e_type != ET_DYN) {
    return "ELF header: not a shared library";
  }
  if (header.e_ehsize != sizeof(Elf64_Ehdr) || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    return "ELF header: the sizes of the headers are not those of ELF64";
  }
  if (!inside(file, header.e_phoff, std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) {
    return "ELF header: program headers are outside of the file (is it truncated?)";
  }
  if (header.e_shnum == 0 ||
      !inside(file, header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr))) {
    return "ELF header: section headers are outside of the file (is it truncated?)";
  }
  if (header.e_shstrndx >= header.e_shnum) {
    return "ELF header: the table of section names is not a section";
  }
  return "";
}

Elf64_Phdr segment_of(Bytes file, const Elf64_Ehdr& header, unsigned i) {
  return read_at<Elf64_Phdr>(file, header.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
}

/// Checks what dlopen relies on: every segment must be inside the file.
std::string check_segments(Bytes file, const Elf64_Ehdr& header) {
  bool dynamic = false;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const Elf64_Phdr segment = segment_of(file, header, i);
    if (segment.p_type == PT_LOAD && segment.p_filesz > segment.p_memsz) {
      return "program header " + std::to_string(i) + ": larger in the file than in memory";
    }
    if ((segment.p_type == PT_LOAD || segment.p_type == PT_DYNAMIC) &&
        !inside(file, segment.p_offset, segment.p_filesz)) {
      return "program header " + std::to_string(i) + ": is outside of the file (is it truncated?)";
    }
    dynamic = dynamic || segment.p_type == PT_DYNAMIC;
  }
  return dynamic ? "" : "program headers: no dynamic segment";
}

/// Headers and segments.
std::string check_library(Bytes file) {
  if (file.size() < SELFMAG || std::memcmp(file.data(), ELFMAG, SELFMAG) != 0) {
    return "not an ELF file";
  }
  if (file.size() < sizeof(Elf64_Ehdr)) {
    return "ELF header: truncated";
  }
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  if (std::string refusal = check_header(file, header); !refusal.empty()) {
    return refusal;
  }
  return check_segments(file, header);
}

/// The bytes of the file that are in memory from `address` on, up to the end of their segment.
Bytes memory_at(Bytes file, const Elf64_Ehdr& header, std::uint64_t address) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const Elf64_Phdr segment = segment_of(file, header, i);
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz) {
      const std::uint64_t into = address - segment.p_vaddr;
      return file.subspan(segment.p_offset + into, segment.p_filesz - into);
    }
  }
  return {};
}

}  // namespace

std::string read_dynamic_section(Bytes file, DynamicSection& dynamic) {
  if (std::string refusal = check_library(file); !refusal.empty()) {
    return refusal;
  }
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  Bytes entries;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    if (const Elf64_Phdr segment = segment_of(file, header, i); segment.p_type == PT_DYNAMIC) {
      entries = memory_at(file, header, segment.p_vaddr);  // the loader goes by the address
    }
  }
  std::vector<std::pair<std::int64_t, std::uint64_t>> texts;  // kind of entry, offset of its text
  std::string_view table;
  bool ended = false;
  for (std::size_t at = 0; !ended && at + sizeof(Elf64_Dyn) <= entries.size();
       at += sizeof(Elf64_Dyn)) {
    const auto entry = read_at<Elf64_Dyn>(entries, at);
    ended = entry.d_tag == DT_NULL;
    if (entry.d_tag == DT_STRTAB) {
      const Bytes memory = memory_at(file, header, entry.d_un.d_ptr);
      table = {reinterpret_cast<const char*>(memory.data()), memory.size()};
    } else if (entry.d_tag == DT_NEEDED || entry.d_tag == DT_RUNPATH || entry.d_tag == DT_RPATH ||
               entry.d_tag == DT_AUXILIARY || entry.d_tag == DT_FILTER) {
      texts.emplace_back(entry.d_tag, entry.d_un.d_val);
    }
  }
  if (!ended) {
    return "dynamic section: is outside of the file (is it truncated?)";
  }
  for (const auto& [tag, offset] : texts) {
    const std::size_t end = offset < table.size() ? table.find('\0', offset) : table.npos;
    if (end == table.npos) {
      return "dynamic section: a name is outside of the file (is it truncated?)";
    }
    std::string text(table.substr(offset, end - offset));
    if (tag == DT_RUNPATH) {
      dynamic.runpath = std::move(text);
    } else if (tag == DT_RPATH) {
      dynamic.rpath = std::move(text);
    } else {
      dynamic.needed.push_back(std::move(text));
    }
  }
  return "";
}

std::string locate_stamp(Bytes file, StampPlace& place) {
  if (std::string refusal = check_library(file); !refusal.empty()) {
    return refusal;
  }
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  const auto section = [&](unsigned i) {
    return read_at<Elf64_Shdr>(file, header.e_shoff + std::uint64_t{i} * sizeof(Elf64_Shdr));
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  if (names.sh_type != SHT_STRTAB || !inside(file, names.sh_offset, names.sh_size)) {
    return "section names: are outside of the file (is it truncated?)";
  }
  const std::string_view table(reinterpret_cast<const char*>(file.data()) + names.sh_offset,
                               names.sh_size);
  bool found = false;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr candidate = section(i);
    if (candidate.sh_name >= table.size()) {
      return "section " + std::to_string(i) + ": its name is outside of the table of names";
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
      return "section " TESSERA_PLUGIN_SECTION ": is outside of the file (is it truncated?)";
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
