// Gate one against files that lie. Nothing here is ever loaded.
#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.plugin;

using namespace tessera;

namespace {

bool refused(std::span<const std::byte> content) {
  return !plugin::read_stamp(content).refusals.empty();
}

std::string reason(std::span<const std::byte> content) {
  const plugin::StampReading reading = plugin::read_stamp(content);
  return reading.refusals.empty() ? "" : reading.refusals.front();
}

/// Headers and stamp: [offset, size) of what a reader must believe.
std::vector<std::pair<std::size_t, std::size_t>> structures(const Content& content) {
  const Elf64_Ehdr header = header_of(content);
  return {{0, sizeof(header)},
          {header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr)},
          {header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr)},
          dynamic_place(content),
          {stamp_offset(content), sizeof(plugin::GateStamp)}};
}

}  // namespace

TEST_CASE("gate one accepts the file as it was linked, and tells what it is") {
  const plugin::StampReading reading = plugin::read_stamp(content_of("Hello"));
  REQUIRE(reading.refusals.empty());
  REQUIRE(reading.stamp);
  CHECK(reading.stamp->name == "Hello");
  CHECK(reading.stamp->version == "1.2.3");
  CHECK(reading.stamp->description == "Says \"hello\"");
  CHECK(reading.stamp->provides == std::vector<plugin::Offer>{{"greeter", "Hello"}});
  CHECK(reading.stamp->kinds() == std::vector<std::string>{"greeter"});
}

TEST_CASE("a flipped bit anywhere in the file is refused") {
  Content content = content_of("Hello");
  std::size_t accepted = 0;
  const auto flip = [&](std::size_t at, unsigned char bits) {
    content[at] ^= std::byte{bits};
    accepted += refused(content) ? 0U : 1U;
    content[at] ^= std::byte{bits};
  };
  for (const auto& [offset, size] : structures(content)) {
    for (std::size_t at = offset; at < offset + size; ++at) {
      flip(at, 0x01);
      flip(at, 0x80);
      flip(at, 0xff);
    }
  }
  for (std::size_t at = 0; at < content.size(); at += 7) {
    flip(at, 0x10);
  }
  CHECK(accepted == 0);
  CHECK_FALSE(refused(content));
}

TEST_CASE("a file cut at any length is refused") {
  const Content content = content_of("Hello");
  std::size_t accepted = 0;
  for (std::size_t length = 0; length < content.size(); length += length < 4096 ? 1 : 13) {
    // An own copy: a read past its end is a read past an allocation.
    const Content cut(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(length));
    accepted += refused(cut) ? 0U : 1U;
  }
  CHECK(accepted == 0);
}

TEST_CASE("headers that lie with the right digest never lead outside of the file") {
  const Content good = content_of("Hello");
  const std::size_t stamp = stamp_offset(good);
  const std::uint64_t lies[] = {0,
                                1,
                                0x7fffffff,
                                0xffffffff,
                                good.size() - 1,
                                good.size(),
                                ~std::uint64_t{0},
                                ~std::uint64_t{0} - 63,
                                std::uint64_t{1} << 63};
  std::size_t asked = 0;
  std::size_t misled = 0;
  const auto all = structures(good);
  for (const auto& [offset, size] : std::span(all).first(4)) {
    for (std::size_t at = offset; at < offset + size; at += 2) {
      for (const std::uint64_t lie : lies) {
        Content content = good;
        std::memcpy(content.data() + at, &lie, std::min(sizeof(lie), content.size() - at));
        stamp_again(content, stamp);
        const plugin::StampReading reading = plugin::read_stamp(content);
        misled += reading.refusals.empty() && (!reading.stamp || reading.stamp->name != "Hello");
        plugin::DynamicSection dynamic;
        plugin::read_dynamic_section(content, dynamic);  // must stay inside of the file too
        ++asked;
      }
    }
  }
  CHECK(asked > 1000);
  CHECK(misled == 0);
}

TEST_CASE("what is no plugin for this machine is refused with the reason") {
  const Content good = content_of("Hello");
  const auto with_header = [&](auto change) {
    Content content = good;
    Elf64_Ehdr header = header_of(content);
    change(header);
    std::memcpy(content.data(), &header, sizeof(header));
    return content;
  };
  CHECK(reason({}) == "not an ELF file");
  const std::string script = "#!/bin/sh\nexit 0\n";
  CHECK(reason(std::as_bytes(std::span(script))) == "not an ELF file");
  CHECK(reason(with_header([](Elf64_Ehdr& h) {
          h.e_machine = EM_RISCV;
        })).find("another processor") != std::string::npos);
  CHECK(reason(with_header([](Elf64_Ehdr& h) { h.e_ident[EI_CLASS] = ELFCLASS32; })) ==
        "ELF header: not a 64-bit library");
  CHECK(reason(with_header([](Elf64_Ehdr& h) { h.e_type = ET_EXEC; })) ==
        "ELF header: not a shared library");
  CHECK(reason(with_header([](Elf64_Ehdr& h) { h.e_ident[EI_DATA] = ELFDATA2MSB; })) ==
        "ELF header: not little-endian");
  CHECK(reason(with_header([](Elf64_Ehdr& h) {
          h.e_shoff = ~std::uint64_t{0} - 8;
        })).find("section headers are outside") != std::string::npos);
  CHECK(reason(with_header([](Elf64_Ehdr& h) {
          h.e_shnum = 0xffff;
        })).find("outside of the file") != std::string::npos);
}

TEST_CASE("a refusal names every field in which host and library differ") {
  const Content content = with_stamp(content_of("Hello"), [](plugin::GateStamp& stamp) {
    std::memset(stamp.fingerprint, 0, sizeof(stamp.fingerprint));
    std::strcpy(stamp.fingerprint, "abc");
    std::strcpy(stamp.facts[0], "gcc 99");
    std::strcpy(stamp.facts[3], "off");
    std::strcpy(stamp.provides, "gretter:Hello");
  });
  const plugin::StampReading reading = plugin::read_stamp(content);
  const auto has = [&](const std::string& part) {
    return std::any_of(
        reading.refusals.begin(), reading.refusals.end(),
        [&](const std::string& refusal) { return refusal.find(part) != std::string::npos; });
  };
  CHECK(reading.refusals.size() == 3);
  CHECK(has("interface fingerprint: host has " TESSERA_INTERFACE_FINGERPRINT ", library has abc"));
  CHECK(has("library has gcc 99"));
  CHECK(has("RTTI: host has on, library has off"));
}

TEST_CASE("a stamp of another layout, or with text that is none, is refused") {
  const Content good = content_of("Hello");
  using Stamp = plugin::GateStamp;
  CHECK(reason(with_stamp(good, [](Stamp& s) { s.abi_epoch = 9; })) ==
        "ABI epoch: host has 2, library has 9");
  CHECK(reason(with_stamp(good, [](Stamp& s) { s.size = 8; })).find("size of the stamp") == 0);
  CHECK(reason(with_stamp(good, [](Stamp& s) { s.magic[0] = 'T'; })).find("magic") !=
        std::string::npos);
  CHECK(reason(with_stamp(good, [](Stamp& s) { std::memset(s.name, 'x', sizeof(s.name)); })) ==
        "stamp, name: not printable text");
  CHECK(reason(with_stamp(good, [](Stamp& s) { s.description[0] = '\x1b'; })) ==
        "stamp, description: not printable text");
  CHECK(reason(with_stamp(good, [](Stamp& s) { s.name[0] = '\0'; })).find("must not be empty") !=
        std::string::npos);
  CHECK(reason(with_stamp(good, [](Stamp& s) { std::strcpy(s.provides, "greeter"); })) ==
        "stamp, provides: 'greeter' is not kind:name");
}

TEST_CASE("a library that was never stamped says so") {
  Content content = content_of("Hello");
  std::memset(content.data() + stamp_offset(content) + offsetof(plugin::GateStamp, digest), 0, 16);
  CHECK(reason(content).find("never stamped") != std::string::npos);
}
