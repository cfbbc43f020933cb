#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

import tessera.base;
import tessera.stores;

#include "s3.hpp"

namespace s3 {
namespace {

using namespace tessera;
using namespace tessera::stores;
using http::HttpAnswer;
using http::HttpRequest;

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && problem == std::errc() && end == text.data() + text.size()
             ? std::optional(number)
             : std::nullopt;
}

/// The identity of a content; empty for one that only says "about the same".
std::string version_of(const HttpAnswer& answer) {
  std::string tag = answer.header("etag");
  return tag.starts_with("W/") ? std::string() : tag;
}

/// Error: an answer with the bytes of another range, or of another object.
void check_range(const HttpAnswer& answer, const ObjectFacts& facts, ByteRange range) {
  if (answer.code == 206) {
    const std::string expected =
        fmt::format("bytes {}-{}/", range.begin, range.begin + range.count - 1);
    const std::string got = answer.header("content-range");
    if (!got.starts_with(expected)) {
      refuse(StoreFailure::wrong_answer, "the server sends another range than was asked for");
    }
    const std::string_view size = std::string_view(got).substr(expected.size());
    if (size != "*" && number_of(size) != facts.size) {
      refuse(StoreFailure::changed, "the object has another size now");
    }
  } else if (answer.code != 200 || range.begin != 0 || range.count != facts.size) {
    refuse(StoreFailure::wrong_answer, "the server sends no ranges");
  }
  const std::string version = version_of(answer);
  if (!facts.version.empty() && !version.empty() && version != facts.version) {
    refuse(StoreFailure::changed, "the object has another version now");
  }
}

/// A bucket. Each request is signed with the keys of that moment.
class Bucket final : public StoreWriter {
 public:
  explicit Bucket(std::string name) : name_(std::move(name)), account_(read_account()) {}

  ObjectFacts facts(const std::string& name, const RequestLimits& limits) override {
    HttpRequest request = request_for("HEAD", name, {});
    const HttpAnswer answer = sent(request, limits);
    const std::optional<std::uint64_t> size = number_of(answer.header("content-length"));
    if (!size) {
      refuse(StoreFailure::wrong_answer, "the server does not say how large the object is");
    }
    return {.size = *size, .version = version_of(answer)};
  }

  ListPage list(const std::string& folder, const std::string& next,
                const RequestLimits& limits) override {
    Query query;
    if (!next.empty()) {
      query.values.emplace_back("continuation-token", next);
    }
    query.values.emplace_back("encoding-type", "url");
    query.values.emplace_back("list-type", "2");
    query.values.emplace_back("max-keys", "1000");
    query.values.emplace_back("prefix", folder.empty() ? "" : folder + "/");
    HttpRequest request = request_for("GET", "", query);
    return read_list(sent(request, limits).body);
  }

  void read(const std::string& name, const ObjectFacts& facts, ByteRange range,
            const TakeBytes& take, const RequestLimits& limits) override {
    if (range.count == 0) {
      return;
    }
    HttpRequest request = request_for("GET", name, {});
    request.headers.push_back(
        fmt::format("Range: bytes={}-{}", range.begin, range.begin + range.count - 1));
    if (!facts.version.empty()) {
      request.headers.push_back("If-Match: " + facts.version);
    }
    std::uint64_t got = 0;
    request.begin = [&](const HttpAnswer& answer) { check_range(answer, facts, range); };
    request.take = [&](std::span<const std::byte> bytes) {
      if (bytes.size() > range.count - got) {
        refuse(StoreFailure::wrong_answer, "the server sends more bytes than were asked for");
      }
      got += bytes.size();
      take(bytes);
    };
    sent(request, limits);
    if (got != range.count) {
      refuse(StoreFailure::temporary,
             fmt::format("the server sent {} of {} bytes", got, range.count));
    }
  }

  ObjectFacts put(const std::string& name, std::span<const std::byte> bytes,
                  const RequestLimits& limits) override {
    HttpRequest request = request_for("PUT", name, {}, bytes);
    return {.size = bytes.size(), .version = version_of(sent(request, limits))};
  }

  PartLimits part_limits() const override {
    return {.smallest = std::uint64_t{5} << 20, .largest = std::uint64_t{5} << 30, .count = 10000};
  }

  std::string begin_upload(const std::string& name, const RequestLimits& limits) override {
    HttpRequest request =
        request_for("POST", name, {{{"uploads", ""}}}, std::span<const std::byte>());
    return read_upload_id(sent(request, limits).body);
  }

  UploadedPart put_part(const std::string& name, const std::string& id, int number,
                        std::span<const std::byte> bytes, const RequestLimits& limits) override {
    HttpRequest request = request_for(
        "PUT", name, {{{"partNumber", fmt::format("{}", number)}, {"uploadId", id}}}, bytes);
    UploadedPart part{
        .number = number, .tag = sent(request, limits).header("etag"), .size = bytes.size()};
    if (part.tag.empty()) {
      refuse(StoreFailure::wrong_answer, "the server does not name the part that it got");
    }
    return part;
  }

  ObjectFacts complete_upload(const std::string& name, const std::string& id,
                              std::span<const UploadedPart> parts,
                              const RequestLimits& limits) override {
    const std::string text = parts_text(parts);
    HttpRequest request =
        request_for("POST", name, {{{"uploadId", id}}}, std::as_bytes(std::span(text)));
    check_completed(sent(request, limits));
    return facts(name, limits);
  }

  void abort_upload(const std::string& name, const std::string& id,
                    const RequestLimits& limits) override {
    HttpRequest request = request_for("DELETE", name, {{{"uploadId", id}}});
    send_to_remove(request, limits);
  }

  std::vector<PendingUpload> pending_uploads(const std::string& folder,
                                             const RequestLimits& limits) override {
    constexpr int most_pages = 1000;
    std::vector<PendingUpload> all;
    PendingPage page;
    for (int pages = 0; pages == 0 || !page.next_name.empty(); ++pages) {
      if (pages == most_pages) {
        refuse(StoreFailure::wrong_answer, "the list of uploads does not end");
      }
      Query query;
      query.values.emplace_back("encoding-type", "url");
      if (!page.next_name.empty()) {
        query.values.emplace_back("key-marker", page.next_name);
      }
      query.values.emplace_back("prefix", folder.empty() ? "" : folder + "/");
      if (!page.next_name.empty()) {
        query.values.emplace_back("upload-id-marker", page.next_id);
      }
      query.values.emplace_back("uploads", "");
      HttpRequest request = request_for("GET", "", query);
      page = read_pending(sent(request, limits).body);
      std::ranges::move(page.uploads, std::back_inserter(all));
    }
    return all;
  }

  void remove(const std::string& name, const RequestLimits& limits) override {
    HttpRequest request = request_for("DELETE", name, {});
    send_to_remove(request, limits);
  }

 private:
  /// "https://BUCKET.s3.REGION.amazonaws.com", or "ENDPOINT/BUCKET": servers of other makers, and
  /// certificates of buckets with a '.', want the bucket in the path.
  std::string base() const {
    const Service& service = account_.service;
    if (!service.endpoint.empty()) {
      return fmt::format("{}/{}", service.endpoint, name_);
    }
    const std::string host = fmt::format("s3.{}.amazonaws.com{}", service.region,
                                         service.region.starts_with("cn-") ? ".cn" : "");
    return name_.find('.') != std::string::npos ? fmt::format("https://{}/{}", host, name_)
                                                : fmt::format("https://{}.{}", name_, host);
  }

  HttpRequest request_for(const char* method, const std::string& name, const Query& query,
                          std::optional<std::span<const std::byte>> body = std::nullopt) const {
    HttpRequest request{.method = method};
    // libcurl 7.88 signs a type that the request says not to send.
    request.headers.emplace_back("Content-Type: application/octet-stream");
    const std::string text = query.text();
    request.url =
        fmt::format("{}/{}{}{}", base(), http::escaped(name, true), text.empty() ? "" : "?", text);
    if (body) {
      request.has_body = true;
      request.body = *body;
    }
    return request;
  }

  Keys keys() {
    const std::lock_guard lock(mutex_);
    return account_.keys;
  }
  void sign(HttpRequest& request, const Keys& keys) const {
    request.secret_headers.clear();
    request.signature.reset();
    if (keys.key.empty()) {
      return;
    }
    request.secret_headers.push_back("x-amz-content-sha256: " + sha256_of(request.body));
    if (!keys.token.empty()) {
      request.secret_headers.push_back("x-amz-security-token: " + keys.token);
    }
    request.signature =
        http::AwsSignature{.provider = fmt::format("aws:amz:{}:s3", account_.service.region),
                           .key = keys.key,
                           .secret = keys.secret};
  }

  HttpAnswer answer_to(HttpRequest& request, const RequestLimits& limits) {
    const Keys used = keys();
    sign(request, used);
    HttpAnswer answer = client_.send(request, limits);
    const Refusal refusal = read_refusal(answer.code >= 400 ? answer.body : "");
    // HEAD has no body: keys that have ended look like any wrong request.
    const bool ended = refusal.code == "ExpiredToken" || refusal.code == "RequestExpired" ||
                       refusal.code == "InvalidToken" ||
                       (request.method == "HEAD" && (answer.code == 400 || answer.code == 403));
    if (ended && has_new_keys(used)) {
      refuse(StoreFailure::temporary, "the keys have been replaced");
    }
    return answer;
  }
  /// Whether the files have other keys now than those that were used.
  bool has_new_keys(const Keys& used) {
    Keys now = read_account().keys;
    const std::lock_guard lock(mutex_);
    account_.keys = std::move(now);
    return account_.keys != used;
  }

  HttpAnswer sent(HttpRequest& request, const RequestLimits& limits) {
    HttpAnswer answer = answer_to(request, limits);
    check(answer);
    return answer;
  }
  void send_to_remove(HttpRequest& request, const RequestLimits& limits) {
    const HttpAnswer answer = answer_to(request, limits);
    const std::string code = answer.code == 404 ? read_refusal(answer.body).code : "";
    if (code != "NoSuchKey" && code != "NoSuchUpload") {
      check(answer);
    }
  }

  std::string name_;
  std::mutex mutex_;
  Account account_;  // the keys are guarded
  http::HttpClient client_;
};

}  // namespace

std::string sha256_of(std::span<const std::byte> bytes) {
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
  crypto_hash_sha256(hash.data(), reinterpret_cast<const unsigned char*>(bytes.data()),
                     bytes.size());
  std::string text;
  for (const unsigned char byte : hash) {
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

std::string Query::text() const {
  std::string text;
  for (const auto& [name, value] : values) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, http::escaped(value, false));
  }
  return text;
}

std::unique_ptr<StoreWriter> open_bucket(const std::string& bucket) {
  return std::make_unique<Bucket>(bucket);
}

}  // namespace s3
