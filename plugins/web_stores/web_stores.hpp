// The stores of this plugin. Include it after the imports of tessera.base and tessera.stores.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "../http/http_client.hpp"

namespace web_stores {

std::unique_ptr<tessera::stores::StoreScheme> make_https_scheme();
std::unique_ptr<tessera::stores::StoreScheme> make_hub_scheme();

/// Throws StoreError.
[[noreturn]] void fail_store(tessera::stores::StoreFailure failure, std::string wrong,
                             std::string advice = "");

/// What the headers of an answer say of an object of known or unknown size.
struct RangeAnswer {
  std::uint64_t begin = 0;                  // of the bytes that follow
  std::optional<std::uint64_t> size = {};   // of the whole object
  std::optional<std::uint64_t> count = {};  // of the bytes that follow
};
/// Throws StoreError (wrong_answer): the headers contradict themselves, or the bytes are encoded.
RangeAnswer range_of(const tessera::http::HttpAnswer& answer);
/// A number of decimal digits and nothing else.
std::optional<std::uint64_t> number_of(std::string_view text);

/// Gets a range of an object and gives its bytes to `take`. `check` gets the headers before. A
/// server that knows no ranges sends the whole object, of which the rest is left out.
void get_range(tessera::http::HttpClient& client, tessera::http::HttpRequest request,
               const tessera::stores::ObjectFacts& facts, tessera::stores::ByteRange range,
               const std::function<void(const tessera::http::HttpAnswer& answer)>& check,
               const tessera::stores::TakeBytes& take,
               const tessera::stores::RequestLimits& limits);

/// What an address of the hub names.
struct HubAddress {
  std::string kind = "models";  // or datasets, spaces
  std::string owner = {};
  std::string name = {};
  std::string revision = {};  // "main" where the address has none
  std::string path = {};      // in the repository
  std::string repository() const { return owner + "/" + name; }
};
/// Throws StoreError (wrong_address) that says what is expected.
HubAddress parse_hub_address(const std::string& rest);

}  // namespace web_stores
