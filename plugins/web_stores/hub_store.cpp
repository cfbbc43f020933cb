// Repositories of the Hugging Face hub, which are only read.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

import tessera.base;
import tessera.stores;

#include "web_stores.hpp"

namespace web_stores {
namespace {

using namespace tessera;
using namespace tessera::http;
using namespace tessera::stores;

using Json = nlohmann::json;

bool is_hex(const std::string& text, std::size_t digits) {
  return text.size() == digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

/// The text of an ETag.
std::string tag_of(std::string text) {
  if (text.starts_with("W/")) {
    text.erase(0, 2);
  }
  return text.size() >= 2 && text.starts_with('"') && text.ends_with('"')
             ? text.substr(1, text.size() - 2)
             : text;
}

/// Facts of a file whose ETag is the SHA-256 of a large file, or the name that git has for it.
ObjectFacts facts_of(std::uint64_t size, const std::string& tag) {
  constexpr std::size_t sha256_digits = 64;
  constexpr std::size_t git_digits = 40;
  ObjectFacts facts{.size = size, .version = tag};
  if (is_hex(tag, sha256_digits)) {
    facts.sha256 = tag;
  } else if (is_hex(tag, git_digits)) {
    facts.git_blob = tag;
  } else {
    fail_store(StoreFailure::wrong_answer, "the hub has no hash of it (its ETag is none)");
  }
  return facts;
}

/// A text of JSON; a hub that sends something else is none.
template <class Read>
auto read_json(const std::string& text, const Read& read) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception&) {
    fail_store(StoreFailure::wrong_answer, "the hub's answer is not what it is documented to be");
  }
}

/// A folder below $HF_HOME, or where that is by itself.
std::filesystem::path hub_home() {
  namespace fs = std::filesystem;
  if (const auto home = environment_variable("HF_HOME")) {
    return *home;
  }
  const auto cache = environment_variable("XDG_CACHE_HOME");
  return fs::path(cache ? *cache : environment_variable("HOME").value_or("") + "/.cache") /
         "huggingface";
}

/// The token by the variables and the file of huggingface_hub; empty: there is none.
std::string hub_token() {
  std::string token;
  for (const char* variable : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    token = token.empty() ? environment_variable(variable).value_or("") : token;
  }
  if (token.empty()) {
    const auto named = environment_variable("HF_TOKEN_PATH");
    std::ifstream file(named ? std::filesystem::path(*named) : hub_home() / "token");
    constexpr std::streamsize longest_token = 4096;
    token.resize(longest_token);
    file.read(token.data(), longest_token);
    token.resize(static_cast<std::size_t>(file.gcount()));
  }
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!token.empty() && is_space(token.back())) {
    token.pop_back();
  }
  if (!std::ranges::all_of(token, [](char c) { return c > 0x20 && c < 0x7f; })) {
    fail_store(StoreFailure::no_rights, "the hub's token has characters that no token has",
               "set HF_TOKEN to a token, or remove it");
  }
  return token;
}

class HubStore final : public StoreLister {
 public:
  HubStore(HubAddress address, std::string endpoint, std::string token)
      : address_(std::move(address)), endpoint_(std::move(endpoint)), token_(std::move(token)) {}

  std::string fixed_revision(const RequestLimits& limits) override { return commit(limits); }

  ObjectFacts facts(const std::string& name, const RequestLimits& limits) override {
    if (name.empty()) {
      fail_store(StoreFailure::wrong_address, "it is a repository and no file");
    }
    HttpRequest request = request_for(file_url(name, limits));
    request.method = "HEAD";
    request.redirects = Redirects::same_server;
    const HttpAnswer answer = client_.send(request, limits);
    if (answer.location.empty()) {
      check_file_answer(answer);
    }
    check_commit(answer);
    const bool linked = !answer.header("x-linked-etag").empty();
    const std::optional<std::uint64_t> size =
        number_of(answer.header(linked ? "x-linked-size" : "content-length"));
    if (!size) {
      fail_store(StoreFailure::wrong_answer, "the hub does not say how large it is");
    }
    return facts_of(*size, tag_of(answer.header(linked ? "x-linked-etag" : "etag")));
  }

  ListPage list(const std::string& folder, const std::string& next,
                const RequestLimits& limits) override {
    std::string url = next;
    if (url.empty()) {
      url = api_url() + "/tree/" + commit(limits) +
            (folder.empty() ? "" : "/" + escaped(folder, true)) + "?recursive=true&expand=false";
    } else if (server_of(url) != server_of(endpoint_)) {  // the token is for this one only
      fail_store(StoreFailure::wrong_answer, "the hub's list continues at another server");
    }
    const HttpAnswer answer = client_.send(request_for(url), limits);
    check_file_answer(answer);
    ListPage page;
    page.next = next_of(answer.header("link"));
    read_json(answer.body, [&](const Json& entries) {
      for (const Json& entry : entries) {
        if (entry.at("type") == "file") {
          page.objects.push_back(listed(entry));
        }
      }
      return true;
    });
    return page;
  }

  void read(const std::string& name, const ObjectFacts& facts, ByteRange range,
            const TakeBytes& take, const RequestLimits& limits) override {
    HttpRequest request = request_for(file_url(name, limits));
    request.redirects = Redirects::any;
    // The commit is a part of the URL, so the file cannot be another one; its hash is checked.
    get_range(client_, std::move(request), facts, range, [](const HttpAnswer&) {}, take, limits);
  }

 private:
  std::string api_url() const {
    return endpoint_ + "/api/" + address_.kind + "/" + address_.repository();
  }
  std::string file_url(const std::string& name, const RequestLimits& limits) {
    const std::string kind = address_.kind == "models" ? "" : address_.kind + "/";
    return endpoint_ + "/" + kind + address_.repository() + "/resolve/" + commit(limits) + "/" +
           escaped(name, true);
  }
  HttpRequest request_for(const std::string& url) const {
    HttpRequest request;
    request.url = url;
    request.redirects = Redirects::same_server;
    constexpr std::size_t largest_list = std::size_t{64} << 20;
    request.largest_answer = largest_list;
    if (!token_.empty()) {
      request.secret_headers.push_back("Authorization: Bearer " + token_);
    }
    return request;
  }

  /// The commit that the revision is: asked for once, so that all files are of one.
  std::string commit(const RequestLimits& limits) {
    const std::lock_guard lock(mutex_);
    if (commit_.empty()) {
      const HttpAnswer answer = client_.send(
          request_for(api_url() + "/revision/" + escaped(address_.revision, false)), limits);
      check_file_answer(answer);
      const std::string sha = read_json(
          answer.body, [](const Json& facts) { return facts.at("sha").get<std::string>(); });
      constexpr std::size_t digits = 40;
      if (!is_hex(sha, digits)) {
        fail_store(StoreFailure::wrong_answer, "the hub's commit of the revision is none");
      }
      commit_ = sha;
    }
    return commit_;
  }

  /// As check_answer, with what the hub says in X-Error-Code: it answers 401 for what is not there
  /// where nobody has said who asks.
  void check_file_answer(const HttpAnswer& answer) const {
    constexpr long unauthorized = 401;
    constexpr long no_rights = 403;
    constexpr long first_error = 400;
    const std::string code = answer.header("x-error-code");
    if (code == "EntryNotFound") {
      fail_store(StoreFailure::not_there, "the repository has no file of this name");
    }
    if (code == "RevisionNotFound") {
      fail_store(StoreFailure::not_there,
                 "the repository has no revision '" + address_.revision + "'");
    }
    if (code == "RepoNotFound" || (answer.code == unauthorized && code.empty())) {
      fail_store(token_.empty() ? StoreFailure::no_rights : StoreFailure::not_there,
                 token_.empty() ? "the hub has no public repository of this name"
                                : "the hub has no repository of this name that the token may read",
                 token_.empty() ? "check the name, or set HF_TOKEN where it is private"
                                : "check the name, and whether the token is valid and may read it");
    }
    if (code == "GatedRepo" || answer.code == no_rights) {
      fail_store(StoreFailure::no_rights, "the hub does not let you read it",
                 "accept its conditions at " + endpoint_ + "/" + address_.repository() +
                     ", and set HF_TOKEN to a token that may read it");
    }
    if (answer.code >= first_error || !answer.location.empty()) {
      fail_for(answer);
    }
  }
  void check_commit(const HttpAnswer& answer) const {
    const std::string commit = answer.header("x-repo-commit");
    if (!commit.empty() && commit != commit_) {
      fail_store(StoreFailure::changed, "the hub sends it of another commit");
    }
  }

  static ListedObject listed(const Json& entry) {
    if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
      const std::string hash = lfs->at("oid").get<std::string>();
      const std::string mark = "sha256:";
      return {.name = entry.at("path").get<std::string>(),
              .facts = facts_of(lfs->at("size").get<std::uint64_t>(),
                                hash.starts_with(mark) ? hash.substr(mark.size()) : hash)};
    }
    return {.name = entry.at("path").get<std::string>(),
            .facts = facts_of(entry.at("size").get<std::uint64_t>(),
                              entry.at("oid").get<std::string>())};
  }
  /// The address in <> of what is rel="next"; empty: there is none.
  static std::string next_of(const std::string& link) {
    const std::size_t mark = link.find("rel=\"next\"");
    const std::size_t begin = link.rfind('<', mark);
    const std::size_t end = link.find('>', begin == std::string::npos ? 0 : begin);
    return mark == std::string::npos || begin == std::string::npos || end == std::string::npos ||
                   end > mark
               ? ""
               : link.substr(begin + 1, end - begin - 1);
  }

  HubAddress address_;
  std::string endpoint_;
  std::string token_;
  HttpClient client_;
  std::mutex mutex_;
  std::string commit_;
};

class HubScheme final : public StoreScheme {
 public:
  StorePlace open(const Address& address) const override {
    HubAddress hub = parse_hub_address(address.rest());
    std::string endpoint = environment_variable("HF_ENDPOINT").value_or("https://huggingface.co");
    while (endpoint.ends_with('/')) {
      endpoint.pop_back();
    }
    const std::optional<HttpServerName> server = server_of(endpoint);
    if (!server || endpoint.find_first_of("?#") != std::string::npos) {
      fail_store(StoreFailure::wrong_address, "HF_ENDPOINT is not the URL of a server",
                 "set it to https://HOST, or remove it");
    }
    if (server->scheme == "http" && !server->is_loopback()) {
      fail_store(StoreFailure::wrong_address,
                 "HF_ENDPOINT is not https, and anybody on the way could read the token",
                 "set it to https://HOST");
    }
    std::string path = hub.path;
    return {std::make_unique<HubStore>(std::move(hub), endpoint, hub_token()), std::move(path)};
  }
  std::string how_to_get_rights() const override {
    return "set HF_TOKEN to a token that may read it (https://huggingface.co/settings/tokens)";
  }
};

}  // namespace

std::unique_ptr<StoreScheme> make_hub_scheme() { return std::make_unique<HubScheme>(); }

}  // namespace web_stores
