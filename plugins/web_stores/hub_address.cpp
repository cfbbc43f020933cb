// Addresses of the Hugging Face hub: hf:owner/name[@revision][/path], hf:datasets/owner/name...
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

import tessera.base;
import tessera.stores;

#include "web_stores.hpp"

namespace web_stores {
namespace {

using tessera::stores::StoreFailure;

[[noreturn]] void refuse(const std::string& wrong) {
  fail_store(StoreFailure::wrong_address, wrong,
             "write hf:OWNER/NAME, hf:OWNER/NAME@REVISION/FILE or hf:datasets/OWNER/NAME");
}

/// Letters, digits, '-', '_' and '.', as the hub has names.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 96 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

/// Takes the text up to the next '/' from the beginning of `rest`.
std::string_view take_part(std::string_view& rest) {
  const std::size_t slash = rest.find('/');
  const std::string_view part = rest.substr(0, slash);
  rest = slash == std::string_view::npos ? std::string_view{} : rest.substr(slash + 1);
  return part;
}

}  // namespace

HubAddress parse_hub_address(const std::string& text) {
  HubAddress address;
  std::string_view rest = text;
  for (const std::string_view kind : {"models", "datasets", "spaces"}) {
    if (rest.starts_with(kind) && rest.substr(kind.size()).starts_with('/')) {
      address.kind = kind;
      take_part(rest);
      break;
    }
  }
  address.owner = take_part(rest);
  const bool has_name = !rest.empty();
  std::string_view name = take_part(rest);
  const std::size_t at = name.find('@');
  address.revision = at == std::string_view::npos ? "main" : name.substr(at + 1);
  address.name = name.substr(0, at);
  if (!has_name || !is_name(address.owner) || !is_name(address.name)) {
    refuse("it names no repository of the hub");
  }
  // Of the revisions with '/', these are the usual ones; others are written with %2F.
  const bool is_reference = address.revision == "refs";
  if (is_reference) {
    address.revision += "/" + std::string(take_part(rest));
    address.revision += "/" + std::string(take_part(rest));
  }
  const std::optional<std::string> revision = tessera::http::unescaped(address.revision);
  if (!revision || revision->empty() || revision->ends_with('/')) {
    refuse("it names no revision after '@'");
  }
  address.revision = *revision;
  address.path = rest;
  return address;
}

}  // namespace web_stores
