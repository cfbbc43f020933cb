// What the parts of this plugin share. Include it after the imports of tessera.base and
// tessera.stores.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../http/http_client.hpp"

namespace s3 {

/// Who asks. Without a key, requests are not signed: a bucket may be open to everybody.
struct Keys {
  std::string key = {};
  std::string secret = {};
  std::string token = {};  // of a session; empty: none
  std::string from = {};   // where they are from, for errors: "AWS_ACCESS_KEY_ID"
  bool operator==(const Keys& other) const = default;
};

/// Where a bucket is.
struct Service {
  std::string endpoint = {};  // "http://127.0.0.1:9000"; empty: Amazon's
  std::string region = {};
};

struct Account {
  Keys keys = {};
  Service service = {};
};

/// What the environment and the files ~/.aws/credentials and ~/.aws/config say. StoreError
/// (no_rights) that names the variable or the file: a key without its secret, a profile that is not
/// there, a file that others can read, a way to get keys that is not supported.
Account read_account();

/// The part of a file like ~/.aws/config between "[SECTION]" and the next section: names and
/// values. Nothing: there is no such section. Nested lines (that begin with a space) are left out.
std::optional<std::vector<std::pair<std::string, std::string>>> section_of(
    std::string_view text, std::string_view section);

/// What S3 says is wrong: its code and its text, without bytes that a terminal may not get.
struct Refusal {
  std::string code = {};
  std::string message = {};
  std::string region = {};  // in which the bucket is, where it says so
};
/// Of the body of an answer; empty where it is none.
Refusal read_refusal(const std::string& body);
/// Throws StoreError for an answer that is none of 200 to 299.
void check(const tessera::http::HttpAnswer& answer);
[[noreturn]] void fail_with(const Refusal& refusal, const tessera::http::HttpAnswer& answer);

/// Of XML. StoreError (wrong_answer): it is something else.
tessera::stores::ListPage read_list(const std::string& body);
std::string read_upload_id(const std::string& body);
/// The answer to the end of an upload, which may be an error with a code of success.
void check_completed(const tessera::http::HttpAnswer& answer);
struct PendingPage {
  std::vector<tessera::stores::PendingUpload> uploads = {};
  std::string next_name = {};  // empty: this was the end
  std::string next_id = {};
};
PendingPage read_pending(const std::string& body);
/// What ends an upload.
std::string parts_text(std::span<const tessera::stores::UploadedPart> parts);

std::unique_ptr<tessera::stores::StoreWriter> open_bucket(const std::string& bucket);

/// "NAME=VALUE", escaped; in the order of their names, as a signature needs them.
struct Query {
  std::vector<std::pair<std::string, std::string>> values = {};
  std::string text() const;
};

std::string sha256_of(std::span<const std::byte> bytes);

[[noreturn]] void refuse(tessera::stores::StoreFailure failure, std::string wrong,
                         std::string advice = "");

}  // namespace s3
