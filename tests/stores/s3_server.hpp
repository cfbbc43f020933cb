// A bucket of S3 on this machine, with faults. It checks signatures by an implementation of its
// own, and is as strict as S3 about parts, ranges and versions. The judge of what it says is moto
// (s3_judge.sh).
#pragma once
#include <sodium.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "http_server.hpp"

namespace tessera::testing {

inline std::string hex_of(const unsigned char* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    text += two;
  }
  return text;
}

inline std::string s3_hash(const std::string& bytes) {
  unsigned char hash[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(hash, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return hex_of(hash, sizeof hash);
}

inline std::string s3_hmac(const std::string& key, const std::string& text) {
  crypto_auth_hmacsha256_state state;
  unsigned char out[crypto_auth_hmacsha256_BYTES];
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(key.data()),
                              key.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(text.data()),
                                text.size());
  crypto_auth_hmacsha256_final(&state, out);
  return {reinterpret_cast<const char*>(out), sizeof out};
}

/// Version 4 of AWS' signatures, as its documentation describes it.
inline std::string s3_signature(const std::string& secret, const std::string& date,
                                const std::string& region, const std::string& time,
                                const std::string& canonical) {
  const std::string scope = date + "/" + region + "/s3/aws4_request";
  const std::string key =
      s3_hmac(s3_hmac(s3_hmac(s3_hmac("AWS4" + secret, date), region), "s3"), "aws4_request");
  const std::string bytes =
      s3_hmac(key, "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + s3_hash(canonical));
  return hex_of(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

struct S3State {
  std::mutex mutex;
  std::map<std::string, std::string> objects;
  struct Upload {
    std::string key;
    std::map<int, std::string> parts;
    std::string begun = "2026-11-01T00:00:00.000Z";
  };
  std::map<std::string, Upload> uploads;
  std::string key = "AKIDTEST";
  std::string secret = "the+secret/of=tests";
  std::string token;  // of the session; empty: none is wanted
  std::string region = "us-east-1";
  std::size_t page = 1000;
  std::size_t room = std::size_t{1} << 40;  // bytes
  int next_id = 1;
  std::string refused_signature;  // why the last one was
  /// Answers in place of the bucket, which does nothing then.
  std::function<std::optional<Reply>(const Request& request)> before = [](const Request&) {
    return std::nullopt;
  };
  /// Changes an answer, after the bucket has done what was asked for.
  std::function<void(const Request& request, Reply& reply)> after = [](const Request&, Reply&) {};

  std::size_t used() const {
    std::size_t bytes = 0;
    for (const auto& [name, content] : objects) {
      bytes += content.size();
    }
    for (const auto& [id, upload] : uploads) {
      for (const auto& [number, part] : upload.parts) {
        bytes += part.size();
      }
    }
    return bytes;
  }
};

class S3Server {
 public:
  S3State state;

  std::string url() const { return server_.url(); }

  static std::string etag_of(const std::string& bytes) {
    return "\"" + s3_hash(bytes).substr(0, 32) + "\"";
  }
  static Reply error(int code, const std::string& name, const std::string& more = "") {
    return {.code = code,
            .body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>" + name +
                    "</Code><Message>message of " + name + "</Message>" + more + "</Error>"};
  }

 private:
  static std::string decoded(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '%') {
        out += static_cast<char>(std::strtoul(text.substr(i + 1, 2).c_str(), nullptr, 16));
        i += 2;
      } else {
        out += text[i];
      }
    }
    return out;
  }
  static std::string encoded(const std::string& text, bool slashes) {
    std::string out;
    for (const char c : text) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_' ||
          c == '~' || (slashes && c == '/')) {
        out += c;
      } else {
        char three[4];
        std::snprintf(three, sizeof three, "%%%02X", static_cast<unsigned char>(c));
        out += three;
      }
    }
    return out;
  }
  static std::string lower(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  }
  static std::map<std::string, std::string> headers_of(const std::string& head) {
    std::map<std::string, std::string> headers;
    for (std::size_t at = head.find("\r\n"); at != std::string::npos;) {
      const std::size_t end = head.find("\r\n", at + 2);
      const std::string line = head.substr(at + 2, end == std::string::npos ? end : end - at - 2);
      const std::size_t colon = line.find(':');
      if (colon != std::string::npos) {
        std::string value = line.substr(colon + 1);
        value.erase(0, value.find_first_not_of(' '));
        headers[lower(line.substr(0, colon))] = value;
      }
      at = end;
    }
    return headers;
  }
  static std::string between(const std::string& text, const std::string& front,
                             const std::string& back) {
    const std::size_t begin = text.find(front);
    if (begin == std::string::npos) {
      return "";
    }
    const std::size_t end = text.find(back, begin + front.size());
    return text.substr(begin + front.size(),
                       end == std::string::npos ? end : end - begin - front.size());
  }

  struct Asked {
    std::string path;                          // as it was sent
    std::map<std::string, std::string> query;  // as it was sent
    std::map<std::string, std::string> headers;
  };

  /// Why a request is not of who it says; empty: it is.
  std::string wrong_signature(const Request& request, const Asked& asked) {
    const auto header = [&](const std::string& name) {
      const auto found = asked.headers.find(name);
      return found == asked.headers.end() ? std::string() : found->second;
    };
    const std::string line = header("authorization");
    if (!line.starts_with("AWS4-HMAC-SHA256 ")) {
      return "it is not signed";
    }
    const std::string credential = between(line, "Credential=", ",");
    const std::string names = between(line, "SignedHeaders=", ",");
    const std::string time = header("x-amz-date");
    if (credential !=
        state.key + "/" + time.substr(0, 8) + "/" + state.region + "/s3/aws4_request") {
      return "credential " + credential;
    }
    std::tm parts{};
    if (strptime(time.c_str(), "%Y%m%dT%H%M%SZ", &parts) == nullptr ||
        std::abs(timegm(&parts) - std::time(nullptr)) > 900) {
      return "time " + time;
    }
    if (header("x-amz-content-sha256") != s3_hash(request.body)) {
      return "hash of the body";
    }
    if (header("x-amz-security-token") != state.token) {
      return "token";
    }
    for (std::string needed : {"host", "x-amz-date", "x-amz-content-sha256",
                               state.token.empty() ? "host" : "x-amz-security-token"}) {
      if ((";" + names + ";").find(";" + needed + ";") == std::string::npos) {
        return "not signed: " + needed;
      }
    }
    std::string query;
    for (const auto& [name, value] : asked.query) {
      query += (query.empty() ? "" : "&") + name + "=" + value;
    }
    std::string canonical = request.method + "\n" + asked.path + "\n" + query + "\n";
    for (std::size_t at = 0; at < names.size();) {
      const std::size_t end = std::min(names.find(';', at), names.size());
      const std::string name = names.substr(at, end - at);
      if (!asked.headers.contains(name)) {
        return "signed, but not sent: " + name;
      }
      canonical += name + ":" + header(name) + "\n";
      at = end + 1;
    }
    canonical += "\n" + names + "\n" + header("x-amz-content-sha256");
    const std::string right =
        s3_signature(state.secret, time.substr(0, 8), state.region, time, canonical);
    return between(line, "Signature=", ",") == right ? "" : "signature of\n" + canonical;
  }

  Reply answer(const Request& request) {
    const std::lock_guard lock(state.mutex);
    if (std::optional<Reply> instead = state.before(request)) {
      return *instead;
    }
    Reply reply = act(request);
    state.after(request, reply);
    return reply;
  }

  Reply act(const Request& request) {
    Asked asked;
    const std::size_t mark = request.path.find('?');
    asked.path = request.path.substr(0, mark);
    std::string rest = mark == std::string::npos ? "" : request.path.substr(mark + 1);
    while (!rest.empty()) {
      const std::string one = rest.substr(0, rest.find('&'));
      rest.erase(0, one.size() + 1);
      asked.query[one.substr(0, one.find('='))] =
          one.find('=') == std::string::npos ? "" : one.substr(one.find('=') + 1);
    }
    asked.headers = headers_of(request.head);
    if (encoded(decoded(asked.path), true) != asked.path) {
      return error(400, "InvalidURI");
    }
    if (std::string why = wrong_signature(request, asked); !why.empty()) {
      state.refused_signature = why;
      return error(403, why == "token" ? "ExpiredToken" : "SignatureDoesNotMatch");
    }
    const std::string path = decoded(asked.path);
    if (path != "/bucket" && !path.starts_with("/bucket/")) {
      return error(404, "NoSuchBucket");
    }
    const std::string key = path.size() > 8 ? path.substr(8) : "";
    const auto asks = [&](const char* name) { return asked.query.contains(name); };
    if (key.empty()) {
      return request.method != "GET" ? error(405, "MethodNotAllowed")
             : asks("uploads")       ? list_uploads(asked)
             : asks("list-type")     ? list(asked)
                                     : error(400, "InvalidRequest");
    }
    if (request.method == "PUT") {
      return put(request, asked, key);
    }
    if (request.method == "POST" && asks("uploads")) {
      const std::string id = "id+" + std::to_string(state.next_id++) + "/=";
      state.uploads[id].key = key;
      return {.body = "<InitiateMultipartUploadResult><UploadId>" + id +
                      "</UploadId></InitiateMultipartUploadResult>"};
    }
    if (request.method == "POST" && asks("uploadId")) {
      return complete(request, decoded(asked.query["uploadId"]), key);
    }
    if (request.method == "DELETE") {
      if (asks("uploadId")) {
        return state.uploads.erase(decoded(asked.query["uploadId"])) == 1
                   ? Reply{.code = 204, .body = ""}
                   : error(404, "NoSuchUpload");
      }
      state.objects.erase(key);
      return {.code = 204, .body = ""};
    }
    return get(request, asked, key);
  }

  Reply put(const Request& request, Asked& asked, const std::string& key) {
    if (state.used() + request.body.size() > state.room) {
      return error(507, "XMinioStorageFull");
    }
    const std::string tag = "ETag: " + etag_of(request.body) + "\r\n";
    if (!asked.query.contains("uploadId")) {
      state.objects[key] = request.body;
      return {.body = "", .headers = tag};
    }
    const auto upload = state.uploads.find(decoded(asked.query["uploadId"]));
    if (upload == state.uploads.end() || upload->second.key != key) {
      return error(404, "NoSuchUpload");
    }
    upload->second.parts[std::atoi(asked.query["partNumber"].c_str())] = request.body;
    return {.body = "", .headers = tag};
  }

  Reply complete(const Request& request, const std::string& id, const std::string& key) {
    const auto upload = state.uploads.find(id);
    if (upload == state.uploads.end() || upload->second.key != key) {
      return error(404, "NoSuchUpload");
    }
    std::string whole;
    int last = 0;
    std::size_t count = 0;
    std::string rest = request.body;
    while (rest.find("<Part>") != std::string::npos) {
      const std::string part = between(rest, "<Part>", "</Part>");
      rest.erase(0, rest.find("</Part>") + 7);
      const int number = std::atoi(between(part, "<PartNumber>", "<").c_str());
      std::string tag = between(part, "<ETag>", "</ETag>");
      for (std::size_t at; (at = tag.find("&quot;")) != std::string::npos;) {
        tag.replace(at, 6, "\"");
      }
      const auto found = upload->second.parts.find(number);
      if (found == upload->second.parts.end() || etag_of(found->second) != tag) {
        return error(400, "InvalidPart");
      }
      if (number <= last) {
        return error(400, "InvalidPartOrder");
      }
      if (last != 0 && upload->second.parts[last].size() < (std::size_t{5} << 20)) {
        return error(400, "EntityTooSmall");
      }
      last = number;
      whole += found->second;
      ++count;
    }
    if (count == 0) {
      return error(400, "MalformedXML");
    }
    state.objects[key] = whole;
    state.uploads.erase(upload);
    return {.body =
                "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"};
  }

  Reply get(const Request& request, Asked& asked, const std::string& key) {
    const auto found = state.objects.find(key);
    if (found == state.objects.end()) {
      return error(404, "NoSuchKey");
    }
    const std::string& bytes = found->second;
    const std::string tag = etag_of(bytes);
    if (asked.headers.contains("if-match") && asked.headers["if-match"] != tag) {
      return error(412, "PreconditionFailed");
    }
    Reply reply{.body = bytes, .headers = "ETag: " + tag + "\r\n"};
    if (request.method == "GET" && asked.headers.contains("range")) {
      std::size_t first = 0;
      std::size_t last = 0;
      if (std::sscanf(asked.headers["range"].c_str(), "bytes=%zu-%zu", &first, &last) != 2 ||
          first >= bytes.size()) {
        return error(416, "InvalidRange");
      }
      last = std::min(last, bytes.size() - 1);
      reply.code = 206;
      reply.body = bytes.substr(first, last - first + 1);
      reply.headers += "Content-Range: bytes " + std::to_string(first) + "-" +
                       std::to_string(last) + "/" + std::to_string(bytes.size()) + "\r\n";
    }
    return reply;
  }

  Reply list(Asked& asked) {
    const std::string prefix = decoded(asked.query["prefix"]);
    const std::string from = decoded(asked.query["continuation-token"]);
    std::string text;
    std::size_t count = 0;
    std::string next;
    for (const auto& [key, bytes] : state.objects) {
      if (!key.starts_with(prefix) || key <= from) {
        continue;
      }
      if (count == state.page) {
        next = "<NextContinuationToken>" + from_last_ + "</NextContinuationToken>";
        break;
      }
      from_last_ = key;
      ++count;
      text += "<Contents><Key>" + encoded(key, true) + "</Key><Size>" +
              std::to_string(bytes.size()) + "</Size><ETag>" + etag_of(bytes) +
              "</ETag></Contents>";
    }
    return {.body =
                "<?xml version=\"1.0\"?><ListBucketResult "
                "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>" +
                std::string(next.empty() ? "false" : "true") + "</IsTruncated>" + next + text +
                "</ListBucketResult>"};
  }

  Reply list_uploads(Asked& asked) {
    const std::string prefix = decoded(asked.query["prefix"]);
    std::string text;
    for (const auto& [id, upload] : state.uploads) {
      if (upload.key.starts_with(prefix)) {
        text += "<Upload><Key>" + encoded(upload.key, true) + "</Key><UploadId>" + id +
                "</UploadId><Initiated>" + upload.begun + "</Initiated></Upload>";
      }
    }
    return {.body = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>" + text +
                    "</ListMultipartUploadsResult>"};
  }

  std::string from_last_;
  HttpServer server_{[this](const Request& request) { return answer(request); }};
};

}  // namespace tessera::testing
