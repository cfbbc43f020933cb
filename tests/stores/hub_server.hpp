// The endpoints of the Hugging Face hub that clients need, on this machine, with faults. The judge
// of the server is huggingface_hub itself (hub_judge.sh).
#pragma once
#include <sodium.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "http_server.hpp"

namespace tessera::testing {

/// A file of a repository. Those without a git hash are large ones, whose hash is SHA-256.
struct HubFile {
  std::string bytes;
  std::string git_hash = {};
};

inline std::string sha256_of(const std::string& bytes) {
  unsigned char hash[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(hash, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  std::string text;
  for (const unsigned char byte : hash) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

/// What the server has and does; shared with the test under the mutex.
struct HubState {
  std::mutex mutex;
  std::map<std::string, HubFile> files;
  std::string commit = std::string(40, 'a');
  std::string token;              // asked for, where it is not empty
  std::size_t page = 1000;        // of a list
  std::string cdn;                // large files are there: "http://127.0.0.1:PORT"
  std::vector<std::string> seen;  // paths
  std::vector<std::string> with_token;
  std::string path_prefix = "/api/models/owner/name";
  /// Changes a good answer into a fault.
  std::function<void(const Request& request, Reply& reply)> fault = [](const Request&, Reply&) {};
};

/// Bytes of a range request, with the headers that it has.
inline Reply ranged(const Request& request, const std::string& bytes, const std::string& headers) {
  const std::string mark = "Range: bytes=";
  const std::size_t at = request.head.find(mark);
  if (at == std::string::npos) {
    return {.code = 200, .body = bytes, .headers = headers + "Accept-Ranges: bytes\r\n"};
  }
  std::size_t used = 0;
  const std::string text = request.head.substr(at + mark.size());
  const std::size_t begin = std::stoul(text, &used);
  const std::size_t last =
      std::min<std::size_t>(std::stoul(text.substr(used + 1)), bytes.size() - 1);
  if (begin >= bytes.size()) {
    return {.code = 416};
  }
  return {.code = 206,
          .body = bytes.substr(begin, last - begin + 1),
          .headers = headers + "Content-Range: bytes " + std::to_string(begin) + "-" +
                     std::to_string(last) + "/" + std::to_string(bytes.size()) + "\r\n"};
}

inline Reply hub_reply(HubState& hub, const Request& request) {
  using nlohmann::json;
  const std::lock_guard lock(hub.mutex);
  const std::string path = request.path.substr(0, request.path.find('?'));
  hub.seen.push_back(request.path);
  const bool has_token = request.head.find("uthorization: Bearer") != std::string::npos;
  if (has_token) {
    hub.with_token.push_back(path);
  }
  Reply reply{.code = 404, .body = "{\"error\":\"Entry not found\"}"};
  const std::string resolve = "/owner/name/resolve/";
  if (path.starts_with("/cdn/")) {
    reply = ranged(request, hub.files.at(path.substr(5)).bytes, "ETag: \"cdn\"\r\n");
  } else if (!hub.token.empty() &&
             request.head.find("uthorization: Bearer " + hub.token) == std::string::npos) {
    reply = {.code = 401,
             .body = "{\"error\":\"Invalid username or password.\"}",
             .headers = "X-Error-Code: RepoNotFound\r\n"};
  } else if (path.starts_with(hub.path_prefix + "/revision/")) {
    const std::string revision = path.substr((hub.path_prefix + "/revision/").size());
    if (revision == "main" || revision == hub.commit) {
      json siblings = json::array();
      for (const auto& [name, file] : hub.files) {
        siblings.push_back({{"rfilename", name}});
      }
      reply = {
          .code = 200,
          .body = json{{"id", "owner/name"}, {"sha", hub.commit}, {"siblings", siblings}}.dump(),
          .headers = "Content-Type: application/json\r\n"};
    } else {
      reply.headers = "X-Error-Code: RevisionNotFound\r\n";
    }
  } else if (path.starts_with(hub.path_prefix + "/tree/" + hub.commit)) {
    const std::string below = path.substr((hub.path_prefix + "/tree/" + hub.commit).size());
    const std::string prefix = below.empty() ? "" : below.substr(1) + "/";
    const std::size_t cursor = request.path.find("cursor=");
    const std::size_t begin =
        cursor == std::string::npos ? 0 : std::stoul(request.path.substr(cursor + 7));
    json entries = json::array();
    std::size_t at = 0;
    for (const auto& [name, file] : hub.files) {
      if (!name.starts_with(prefix) || at++ < begin || entries.size() == hub.page) {
        continue;
      }
      json entry{{"type", "file"},
                 {"path", name},
                 {"size", file.bytes.size()},
                 {"oid", file.git_hash.empty() ? std::string(40, 'b') : file.git_hash}};
      if (file.git_hash.empty()) {
        entry["lfs"] = {
            {"oid", sha256_of(file.bytes)}, {"size", file.bytes.size()}, {"pointerSize", 130}};
      }
      entries.push_back(entry);
    }
    reply = {.code = 200, .body = entries.dump(), .headers = "Content-Type: application/json\r\n"};
    if (begin + entries.size() < at) {
      const std::size_t host = request.head.find("Host: ") + 6;
      reply.headers += "Link: <http://" +
                       request.head.substr(host, request.head.find('\r', host) - host) + path +
                       "?recursive=true&cursor=" + std::to_string(begin + hub.page) +
                       ">; rel=\"next\"\r\n";
    }
  } else if (path.starts_with(resolve)) {
    const std::string rest = path.substr(resolve.size());
    const std::string revision = rest.substr(0, rest.find('/'));
    const auto found = hub.files.find(rest.substr(rest.find('/') + 1));
    if (revision != hub.commit && revision != "main") {
      reply.headers = "X-Error-Code: RevisionNotFound\r\n";
    } else if (found == hub.files.end()) {
      reply.headers = "X-Error-Code: EntryNotFound\r\n";
    } else if (!found->second.git_hash.empty()) {
      reply = ranged(
          request, found->second.bytes,
          "ETag: \"" + found->second.git_hash + "\"\r\nX-Repo-Commit: " + hub.commit + "\r\n");
    } else {
      reply = {.code = 302,
               .body = "Found",
               .headers = "Location: " + hub.cdn + "/cdn/" + found->first +
                          "?Signature=of-the-cdn\r\nX-Linked-Etag: \"" +
                          sha256_of(found->second.bytes) +
                          "\"\r\nX-Linked-Size: " + std::to_string(found->second.bytes.size()) +
                          "\r\nX-Repo-Commit: " + hub.commit + "\r\n"};
    }
  }
  hub.fault(request, reply);
  return reply;
}

/// The hub, and another server with large files.
class HubServer {
 public:
  HubServer()
      : cdn_([this](const Request& request) { return hub_reply(state, request); }),
        hub_([this](const Request& request) { return hub_reply(state, request); }) {
    state.cdn = cdn_.url();
  }
  std::string url() const { return hub_.url(); }
  HubState state;

 private:
  HttpServer cdn_;
  HttpServer hub_;
};

/// Bytes at random.
inline std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  std::ranges::generate(bytes, [&] { return static_cast<char>(random()); });
  return bytes;
}

}  // namespace tessera::testing
