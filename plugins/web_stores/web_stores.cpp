// Stores on the web: files by HTTPS, and repositories of the Hugging Face hub.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

import tessera.base;
import tessera.plugin;
import tessera.stores;

#include "web_stores.hpp"

namespace web_stores {

using namespace tessera;
using namespace tessera::http;
using namespace tessera::stores;

void fail_store(StoreFailure failure, std::string wrong, std::string advice) {
  throw StoreError(failure, {.wrong = std::move(wrong), .advice = std::move(advice)});
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && error == std::errc() && end == text.data() + text.size()
             ? std::optional(number)
             : std::nullopt;
}

namespace {

/// "bytes 0-9/100" as its three numbers.
RangeAnswer partial_range(std::string_view text) {
  const auto wrong = [] {
    fail_store(StoreFailure::wrong_answer, "the server's Content-Range is none");
  };
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (!text.starts_with("bytes ") || dash == std::string_view::npos ||
      slash == std::string_view::npos || dash > slash) {
    wrong();
  }
  constexpr std::size_t unit = 6;
  const auto begin = number_of(text.substr(unit, dash - unit));
  const auto last = number_of(text.substr(dash + 1, slash - dash - 1));
  const auto size = number_of(text.substr(slash + 1));
  if (!begin || !last || *last < *begin || (size && *last >= *size)) {
    wrong();
  }
  return {.begin = *begin, .size = size, .count = *last - *begin + 1};
}

/// Ends a request whose further bytes nobody needs.
struct EnoughBytes {};

}  // namespace

RangeAnswer range_of(const HttpAnswer& answer) {
  const std::string encoding = answer.header("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    fail_store(StoreFailure::wrong_answer,
               "the server sends the file in another encoding, which was not asked for");
  }
  const std::optional<std::uint64_t> length = number_of(answer.header("content-length"));
  constexpr long partial = 206;
  if (answer.code != partial) {
    return {.begin = 0, .size = length, .count = length};
  }
  const RangeAnswer range = partial_range(answer.header("content-range"));
  if (length && length != range.count) {
    fail_store(StoreFailure::wrong_answer,
               "the server's Content-Range and Content-Length contradict each other");
  }
  return range;
}

void get_range(HttpClient& client, HttpRequest request, const ObjectFacts& facts, ByteRange range,
               const std::function<void(const HttpAnswer& answer)>& check, const TakeBytes& take,
               const RequestLimits& limits) {
  std::uint64_t skip = 0;
  std::uint64_t left = range.count;
  request.headers.push_back("Range: bytes=" + std::to_string(range.begin) + "-" +
                            std::to_string(range.begin + range.count - 1));
  request.begin = [&](const HttpAnswer& answer) {
    const RangeAnswer sent = range_of(answer);
    if (sent.size && *sent.size != facts.size) {
      fail_store(StoreFailure::changed, "it has another size now (expected " +
                                            std::to_string(facts.size) + ", got " +
                                            std::to_string(*sent.size) + ")");
    }
    check(answer);
    if (sent.begin > range.begin) {
      fail_store(StoreFailure::wrong_answer, "the server sends another range than was asked for");
    }
    skip = range.begin - sent.begin;
  };
  request.take = [&](std::span<const std::byte> bytes) {
    const std::uint64_t left_out = std::min<std::uint64_t>(skip, bytes.size());
    skip -= left_out;
    bytes = bytes.subspan(static_cast<std::size_t>(left_out));
    const std::uint64_t wanted = std::min<std::uint64_t>(left, bytes.size());
    take(bytes.first(static_cast<std::size_t>(wanted)));
    left -= wanted;
    if (wanted < bytes.size()) {
      throw EnoughBytes{};
    }
  };
  try {
    check_answer(client.send(request, limits));
  } catch (const EnoughBytes&) {
    return;  // the server sends all of the file, and the range has been taken
  }
}

}  // namespace web_stores

void register_plugin(tessera::plugin::Registrar& registrar) {
  using tessera::stores::StoreScheme;
  registrar.add<StoreScheme>("https", web_stores::make_https_scheme);
  registrar.add<StoreScheme>("http", web_stores::make_https_scheme);
  registrar.add<StoreScheme>("hf", web_stores::make_hub_scheme);
}
