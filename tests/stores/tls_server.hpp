// A server of https for a test, with certificates that the test makes.
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"
#include "free_port.hpp"
#include "http_server.hpp"

namespace tessera::testing {

/// An authority, and certificates of servers that it signs.
class Certificates : public Folder {
 public:
  Certificates() {
    run("req -x509 " + new_key + " -keyout ca.key -out ca.pem -days 2 -subj /CN=authority");
    run("req -x509 " + new_key + " -keyout other.key -out other.pem -days 2 -subj /CN=other");
    make("good", "IP:127.0.0.1", 2);
    make("expired", "IP:127.0.0.1", -1);
    make("other_host", "DNS:other.example", 2);
    run("req -x509 " + new_key +
        " -keyout alone.key -out alone.pem -days 2 -subj /CN=alone -addext "
        "subjectAltName=IP:127.0.0.1");
  }

 private:
  void make(const std::string& name, const std::string& host, int days) {
    write(name + ".ext", "subjectAltName=" + host + "\n");
    run("req -new " + new_key + " -keyout " + name + ".key -out " + name + ".csr -subj /CN=server");
    run("x509 -req -in " + name + ".csr -CA ca.pem -CAkey ca.key -set_serial 7 -days " +
        std::to_string(days) + " -extfile " + name + ".ext -out " + name + ".pem");
  }
  void run(const std::string& words) const {
    INFO(words);
    REQUIRE(std::system(
                ("cd " + path().string() + " && openssl " + words + " 2> errors").c_str()) == 0);
  }
  const std::string new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
};

/// Answers requests over TLS, of one connection after the other.
class TlsServer {
 public:
  using Handler = std::function<Reply(const Request& request)>;

  /// `name`: of the certificate.
  TlsServer(const Certificates& certificates, const std::string& name, Handler handler)
      : handler_(std::move(handler)), port_(free_port()) {
    REQUIRE(::pipe2(to_, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(from_, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, to_[0], 0);
    posix_spawn_file_actions_adddup2(&files, from_[1], 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    std::vector<std::string> words = {"openssl",
                                      "s_server",
                                      "-quiet",
                                      "-accept",
                                      "127.0.0.1:" + std::to_string(port_),
                                      "-cert",
                                      certificates / (name + ".pem"),
                                      "-key",
                                      certificates / (name + ".key")};
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    REQUIRE(::posix_spawnp(&process_, "openssl", &files, nullptr, arguments.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&files);
    ::close(to_[0]);
    ::close(from_[1]);
    wait_until_it_listens();
    thread_ = std::thread([this] { serve(); });
  }
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;
  ~TlsServer() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    thread_.join();  // its pipe has ended
    ::close(to_[1]);
    ::close(from_[0]);
  }

  std::string url() const { return "https://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void wait_until_it_listens() const {
    for (int i = 0; i < 500; ++i) {
      const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<std::uint16_t>(port_));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const bool there =
          ::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
      ::close(connection);
      if (there) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    FAIL("openssl does not listen");
  }

  void serve() {
    std::string text;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::read(from_[0], bytes, sizeof bytes)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(count));
      for (std::size_t end = 0; (end = text.find("\r\n\r\n")) != std::string::npos;) {
        Request request;  // these have no bodies
        request.head = text.substr(0, end);
        text.erase(0, end + 4);
        request.method = request.head.substr(0, request.head.find(' '));
        const std::size_t path = request.method.size() + 1;
        request.path = request.head.substr(path, request.head.find(' ', path) - path);
        answer(request);
      }
    }
  }
  void answer(const Request& request) {
    const Reply reply = handler_(request);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const std::string text = "HTTP/1.1 " + std::to_string(reply.code) +
                             " X\r\nContent-Length: " + std::to_string(reply.body.size()) + "\r\n" +
                             reply.headers + "\r\n" + (request.method == "HEAD" ? "" : reply.body);
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t count = ::write(to_[1], text.data() + done, text.size() - done);
      if (count <= 0) {
        return;
      }
      done += static_cast<std::size_t>(count);
    }
  }

  Handler handler_;
  int port_;
  int to_[2] = {-1, -1};
  int from_[2] = {-1, -1};
  pid_t process_ = -1;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace tessera::testing
