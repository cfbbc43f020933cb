module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <optional>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "elf_file.hpp"
#include "tessera/plugin_gate.h"
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

using ranges::views::zip;

constexpr char host_gate_facts[gate_fact_count][32] = TESSERA_GATE_FACTS;

/// A kind that has become another one, and the type that sources of its plugins named.
struct RetiredKind {
  std::string_view name;
  std::string_view now;
  std::string_view said;
  std::string_view write;
};
constexpr RetiredKind retired_kinds[] = {
    {"pass", "change", "graph::Pass", "graph::Change"},
    {"transform", "change", "graph::Transform", "graph::Change"},
    {"override", "change", "Override", "graph::Change"}};

/// Adds a line for each thing of the kind that the stamp offers.
void refuse_retired(const Stamp& stamp, const RetiredKind& kind,
                    std::vector<std::string>& refusals) {
  for (const Offer& offer : stamp.provides) {
    if (offer.kind == kind.name) {
      refusals.push_back(fmt::format(
          "{} '{}': the kind '{}' is '{}' now; write 'KIND {}' instead of 'KIND {}' in its "
          "CMakeLists.txt, and 'registrar.add<{}>' instead of 'registrar.add<{}>' in its source",
          kind.name, offer.name, kind.name, kind.now, kind.now, kind.name, kind.write, kind.said));
    }
  }
}

/// The text of a field; nothing when it does not end or holds control characters.
std::optional<std::string> text_of(std::span<const char> field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  if (end == field.end() || std::any_of(field.begin(), end, [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
      })) {
    return std::nullopt;
  }
  return std::string(field.begin(), end);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (space > 0) {
      words.emplace_back(text.substr(0, space));
    }
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return words;
}

/// Reads all fields; `refusals` gets one line for each that cannot be read.
Stamp decode(const GateStamp& raw, std::vector<std::string>& refusals) {
  const auto field = [&](const char* name, std::span<const char> bytes) {
    std::optional<std::string> text = text_of(bytes);
    if (!text) {
      refusals.push_back(fmt::format("stamp, {}: not printable text", name));
    }
    return text.value_or("");
  };
  Stamp stamp;
  stamp.name = field("name", raw.name);
  stamp.version = field("version", raw.version);
  stamp.description = field("description", raw.description);
  stamp.facts.push_back({"interface fingerprint", field("fingerprint", raw.fingerprint)});
  for (const auto& [name, fact] : zip(gate_fact_names, raw.facts)) {
    stamp.facts.push_back({name, field(name, fact)});
  }
  for (const std::string& word : words_of(field("provides", raw.provides))) {
    const std::size_t colon = word.find(':');
    if (colon == std::string::npos) {
      refusals.push_back(fmt::format("stamp, provides: '{}' is not kind:name", word));
      continue;
    }
    stamp.provides.push_back({word.substr(0, colon), word.substr(colon + 1)});
  }
  for (const unsigned char byte : raw.digest) {
    stamp.digest += fmt::format("{:02x}", byte);
  }
  return stamp;
}

void compare_with_host(const Stamp& stamp, std::vector<std::string>& refusals) {
  const std::vector<Fact> host = host_facts();
  for (const auto& [own, other] : zip(host, stamp.facts)) {
    if (own.value != other.value) {
      refusals.push_back(
          fmt::format("{}: host has {}, library has {}", own.name, own.value, other.value));
    }
  }
  if (stamp.name.empty() || stamp.provides.empty()) {
    refusals.emplace_back("stamp: the name and what it provides must not be empty");
  }
}

}  // namespace

std::vector<Fact> host_facts() {
  std::vector<Fact> facts{{"interface fingerprint", TESSERA_INTERFACE_FINGERPRINT}};
  for (const auto& [name, fact] : zip(gate_fact_names, host_gate_facts)) {
    facts.push_back({name, fact});
  }
  return facts;
}

std::string host_version() { return TESSERA_VERSION; }

std::vector<std::string> Stamp::kinds() const {
  std::vector<std::string> all;
  for (const Offer& offer : provides) {
    if (std::find(all.begin(), all.end(), offer.kind) == all.end()) {
      all.push_back(offer.kind);
    }
  }
  return all;
}

bool Offer::operator==(const Offer& other) const {
  return kind == other.kind && name == other.name;
}

StampReading read_stamp(std::span<const std::byte> file) {
  StampReading reading;
  StampPlace place;
  if (std::string why = locate_stamp(file, place); !why.empty()) {
    reading.refusals.push_back(std::move(why));
    return reading;
  }
  GateStamp raw{};
  std::memcpy(&raw, file.data() + place.offset, std::min(place.size, sizeof(raw)));
  if (std::memcmp(raw.magic, gate_magic, sizeof(raw.magic)) != 0) {
    reading.refusals.emplace_back("stamp: does not start with Tessera's magic bytes");
    return reading;
  }
  if (raw.abi_epoch != gate_abi_epoch) {
    reading.refusals.push_back(
        fmt::format("ABI epoch: host has {}, library has {}", gate_abi_epoch, raw.abi_epoch));
  }
  if (raw.size != sizeof(raw) || place.size != sizeof(raw)) {
    reading.refusals.push_back(fmt::format("size of the stamp: host has {}, library has {} in {}",
                                           sizeof(raw), raw.size, place.size));
  }
  if (!reading.refusals.empty()) {
    return reading;  // the rest of the layout is not known
  }
  const std::size_t digest_at = place.offset + offsetof(GateStamp, digest);
  const Digest digest = content_digest(file, digest_at);
  if (std::memcmp(digest.data(), raw.digest, digest.size()) != 0) {
    const bool never = std::all_of(std::begin(raw.digest), std::end(raw.digest),
                                   [](unsigned char byte) { return byte == 0; });
    reading.refusals.emplace_back(never ? "content: never stamped; run tessera-stamp on it"
                                        : "content: differs from what was linked (cut, damaged, "
                                          "edited or stripped); build it again, "
                                          "or run tessera-stamp on it if the change was yours");
  }
  reading.stamp = decode(raw, reading.refusals);
  compare_with_host(*reading.stamp, reading.refusals);
  return reading;
}

std::vector<std::string> refused_kinds(const Stamp& stamp) {
  std::vector<std::string> refusals;
  const std::vector<DeclaredKind> declared = declared_kinds();
  std::vector<std::string> names;
  names.reserve(declared.size());
  for (const DeclaredKind& kind : declared) {
    names.push_back(kind.name);
  }
  for (const std::string& kind : stamp.kinds()) {
    const auto retired = std::ranges::find(retired_kinds, kind, &RetiredKind::name);
    if (retired != std::end(retired_kinds)) {
      refuse_retired(stamp, *retired, refusals);
    } else if (std::find(names.begin(), names.end(), kind) == names.end()) {
      refusals.push_back(fmt::format("kind: host has {}, library has {}{}",
                                     names.empty() ? "none" : join_words(names), kind,
                                     did_you_mean(kind, names)));
    }
  }
  return refusals;
}

std::vector<std::string> refused_entries(const Stamp& stamp, const std::vector<Entry>& entries) {
  std::vector<std::string> refusals;
  const std::vector<DeclaredKind> declared = declared_kinds();
  std::vector<Offer> seen;
  for (const Entry& entry : entries) {
    const Offer offer{entry.kind, entry.name};
    const std::string thing = fmt::format("{} '{}'", entry.kind, entry.name);
    if (std::find(seen.begin(), seen.end(), offer) != seen.end()) {
      refusals.push_back(fmt::format("{}: registered twice by one plugin", thing));
    }
    seen.push_back(offer);
    if (std::find(stamp.provides.begin(), stamp.provides.end(), offer) == stamp.provides.end()) {
      refusals.push_back(
          fmt::format("{}: registered, but not promised by the stamp; name it under PROVIDES in "
                      "tessera_add_plugin",
                      thing));
    }
    if (entry.factory == nullptr) {
      refusals.push_back(fmt::format("{}: its factory is empty", thing));
    }
    const auto kind = std::find_if(declared.begin(), declared.end(),
                                   [&](const DeclaredKind& k) { return k.name == entry.kind; });
    if (kind != declared.end() && kind->version != entry.version) {
      refusals.push_back(fmt::format("{}: host has version {} of the interface, library has {}",
                                     thing, kind->version, entry.version));
    }
    if (kind != declared.end() && kind->factory_type != entry.factory_type) {
      refusals.push_back(fmt::format("{}: host has the interface {}, library has {}", thing,
                                     kind->factory_type, entry.factory_type));
    }
  }
  for (const Offer& offer : stamp.provides) {
    if (std::find(seen.begin(), seen.end(), offer) == seen.end()) {
      refusals.push_back(fmt::format("{} '{}': promised by the stamp, but not registered",
                                     offer.kind, offer.name));
    }
  }
  return refusals;
}

}  // namespace tessera::plugin
