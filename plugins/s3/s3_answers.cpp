#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <optional>
#include <pugixml.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>

import tessera.base;
import tessera.stores;

#include "s3.hpp"

namespace s3 {
namespace {

using namespace tessera;
using namespace tessera::stores;
using http::HttpAnswer;

[[noreturn]] void wrong_answer(const std::string& what) {
  refuse(StoreFailure::wrong_answer, "the server's answer is none of S3: " + what);
}

/// The element of this name at the top. pugixml reads no entities of a document's own, and no
/// files.
pugi::xml_node top_of(pugi::xml_document& document, const std::string& body, const char* name) {
  if (!document.load_buffer(body.data(), body.size(), pugi::parse_default, pugi::encoding_utf8)) {
    wrong_answer("it is not XML");
  }
  const pugi::xml_node top = document.child(name);
  if (!top) {
    wrong_answer(fmt::format("it has no {}", name));
  }
  return top;
}

std::string text_in(const pugi::xml_node& node, const char* name) {
  return node.child(name).child_value();
}

/// A name that was sent with encoding-type=url.
std::string name_in(const pugi::xml_node& node, const char* element) {
  std::optional<std::string> name = http::unescaped(text_in(node, element));
  if (!name) {
    wrong_answer(fmt::format("{} is not a name", element));
  }
  return std::move(*name);
}

std::uint64_t number_in(const pugi::xml_node& node, const char* name) {
  const std::string text = text_in(node, name);
  std::uint64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size()) {
    wrong_answer(fmt::format("{} is not a number", name));
  }
  return number;
}

bool is_true(const pugi::xml_node& node, const char* name) { return text_in(node, name) == "true"; }

/// "2026-12-01T04:00:00.000Z" as seconds since 1970; 0: it is none.
double time_of(const std::string& text) {
  std::tm parts{};
  const char* const end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  return end == nullptr ? 0 : static_cast<double>(timegm(&parts));
}

struct CodeFailure {
  std::string_view code;
  StoreFailure failure;
  std::string_view advice = {};
};
/// Codes of S3's errors whose status says less than they do.
constexpr std::array<CodeFailure, 29> meanings = {{
    {"NoSuchKey", StoreFailure::not_there},
    {"NoSuchBucket", StoreFailure::not_there, "create the bucket, or name another one"},
    {"NoSuchUpload", StoreFailure::not_there},
    {"AccessDenied", StoreFailure::no_rights},
    {"AllAccessDisabled", StoreFailure::no_rights},
    {"AccountProblem", StoreFailure::no_rights},
    {"InvalidAccessKeyId", StoreFailure::no_rights},
    {"SignatureDoesNotMatch", StoreFailure::no_rights},
    {"ExpiredToken", StoreFailure::no_rights, "get new keys: those of the session have ended"},
    {"InvalidToken", StoreFailure::no_rights},
    {"TokenRefreshRequired", StoreFailure::no_rights},
    {"RequestTimeTooSkewed", StoreFailure::no_rights, "set this machine's clock"},
    {"RequestExpired", StoreFailure::no_rights, "set this machine's clock"},
    {"QuotaExceeded", StoreFailure::no_space},
    {"XMinioStorageFull", StoreFailure::no_space},
    {"XMinioAdminBucketQuotaExceeded", StoreFailure::no_space},
    {"InsufficientStorage", StoreFailure::no_space},
    {"EntityTooLarge", StoreFailure::no_space},
    {"PreconditionFailed", StoreFailure::changed},
    {"InvalidRange", StoreFailure::changed},
    {"SlowDown", StoreFailure::temporary},
    {"RequestTimeout", StoreFailure::temporary},
    {"OperationAborted", StoreFailure::temporary},
    {"ConditionalRequestConflict", StoreFailure::temporary},
    {"BadDigest", StoreFailure::temporary},
    {"XAmzContentSHA256Mismatch", StoreFailure::temporary},
    {"IncompleteBody", StoreFailure::temporary},
    {"InternalError", StoreFailure::temporary},
    {"InvalidBucketName", StoreFailure::wrong_address},
}};

}  // namespace

Refusal read_refusal(const std::string& body) {
  pugi::xml_document document;
  if (body.empty() || !document.load_buffer(body.data(), body.size())) {
    return {};
  }
  const pugi::xml_node error = document.child("Error");
  constexpr std::size_t shown_bytes = 200;
  return {terminal_line(text_in(error, "Code")),
          terminal_line(text_in(error, "Message"), shown_bytes),
          terminal_line(text_in(error, "Region"))};
}

void fail_with(const Refusal& refusal, const HttpAnswer& answer) {
  std::string region = refusal.region;
  if (region.empty()) {
    region = terminal_line(answer.header("x-amz-bucket-region"));
  }
  const bool moved = answer.code == 301 || answer.code == 307 ||
                     refusal.code == "AuthorizationHeaderMalformed" ||
                     refusal.code == "IllegalLocationConstraintException";
  if (moved && !region.empty()) {
    refuse(StoreFailure::wrong_address, "the bucket is in another region",
           fmt::format("set AWS_REGION to {}", region));
  }
  if (refusal.code.empty()) {
    http::fail_for(answer);
  }
  const std::string wrong =
      refusal.message.empty()
          ? fmt::format("the server answers {}", refusal.code)
          : fmt::format("the server answers {}: {}", refusal.code, refusal.message);
  const auto* const found =
      std::ranges::find(meanings, std::string_view(refusal.code), &CodeFailure::code);
  if (found != meanings.end()) {
    throw StoreError(found->failure, {.wrong = wrong, .advice = std::string(found->advice)},
                     answer.after);
  }
  HttpAnswer told = answer;
  told.body = fmt::format("{} {}", refusal.code, refusal.message);
  http::fail_for(told);
}

void check(const HttpAnswer& answer) {
  if (answer.code < 200 || answer.code >= 300) {
    fail_with(read_refusal(answer.body), answer);
  }
}

ListPage read_list(const std::string& body) {
  pugi::xml_document document;
  const pugi::xml_node top = top_of(document, body, "ListBucketResult");
  ListPage page;
  for (const pugi::xml_node& entry : top.children("Contents")) {
    ListedObject object{
        .name = name_in(entry, "Key"),
        .facts = {.size = number_in(entry, "Size"), .version = text_in(entry, "ETag")}};
    // Programs with folders make such objects for those that are empty.
    if (!(object.name.ends_with('/') && object.facts.size == 0)) {
      page.objects.push_back(std::move(object));
    }
  }
  if (is_true(top, "IsTruncated")) {
    page.next = text_in(top, "NextContinuationToken");
    if (page.next.empty()) {
      wrong_answer("a list is cut, and nothing says how it continues");
    }
  }
  return page;
}

std::string read_upload_id(const std::string& body) {
  pugi::xml_document document;
  std::string id = text_in(top_of(document, body, "InitiateMultipartUploadResult"), "UploadId");
  if (id.empty()) {
    wrong_answer("an upload has no id");
  }
  return id;
}

void check_completed(const HttpAnswer& answer) {
  check(answer);
  const Refusal refusal = read_refusal(answer.body);
  if (!refusal.code.empty()) {  // it was found out after the code of success was sent
    HttpAnswer failed = answer;
    failed.code = 500;
    fail_with(refusal, failed);
  }
  pugi::xml_document document;
  top_of(document, answer.body, "CompleteMultipartUploadResult");
}

PendingPage read_pending(const std::string& body) {
  pugi::xml_document document;
  const pugi::xml_node top = top_of(document, body, "ListMultipartUploadsResult");
  PendingPage page;
  for (const pugi::xml_node& entry : top.children("Upload")) {
    page.uploads.push_back({.name = name_in(entry, "Key"),
                            .id = text_in(entry, "UploadId"),
                            .begun = time_of(text_in(entry, "Initiated"))});
  }
  if (is_true(top, "IsTruncated")) {
    page.next_name = name_in(top, "NextKeyMarker");
    page.next_id = text_in(top, "NextUploadIdMarker");
    if (page.next_name.empty()) {
      wrong_answer("a list is cut, and nothing says how it continues");
    }
  }
  return page;
}

std::string parts_text(std::span<const UploadedPart> parts) {
  pugi::xml_document document;
  pugi::xml_node top = document.append_child("CompleteMultipartUpload");
  for (const UploadedPart& part : parts) {
    pugi::xml_node entry = top.append_child("Part");
    entry.append_child("PartNumber").text().set(part.number);
    entry.append_child("ETag").text().set(part.tag.c_str());
  }
  struct Writer final : pugi::xml_writer {
    std::string text;
    void write(const void* data, std::size_t size) override {
      text.append(static_cast<const char*>(data), size);
    }
  } writer;
  document.save(writer, "", pugi::format_raw);
  return writer.text;
}

}  // namespace s3
