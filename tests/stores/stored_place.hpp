// A folder for runs and commands of the program, a hub and a bucket.
#pragma once
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"
#include "hub_server.hpp"
#include "s3_server.hpp"

namespace tessera::testing {

/// What a command has printed.
struct CommandAnswer {
  int code = -1;
  std::string out;
  std::string error;
};

/// A folder that is also the home folder, a hub and a bucket.
class StoredPlace : public Folder {
 public:
  StoredPlace() {
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += "line " + std::to_string(i * i % 97) + " of a text\n";
    }
    write("text.txt", text);
    write("run.toml",
          "[data]\nseq_len = 16\nvalidation = 0\n"
          "[train]\nsteps = 6\nbatch = 4\n[checkpoint]\nfolder = \"saved\"\nevery = 2\nkeep = 0\n");
    write("model.toml",
          "[model]\ndim = 16\nlayers = 2\nheads = 2\nkv_heads = 2\nffn_dim = 32\n[data]\ntext = "
          "[\"text.txt\"]\nseq_len = 16\n[train]\nsteps = 1\n[checkpoint]\nfolder = \"begun\"\n");
    tell("train model.toml");
    tell("checkpoint export begun/step-00000001 --to model");
    for (const std::string& name : names_below("model")) {
      hub.state.files["model/" + name] = {read_file(path() / "model" / name)};
    }
    hub.state.files["text/a.txt"] = {text};
  }
  CommandAnswer ask(const std::string& arguments) const {
    const std::string variables =
        " HF_HOME=" + *this / "hf" + " HF_ENDPOINT=" + hub.url() +
        " TESSERA_STORE_CACHE=" + *this / "copies" + " AWS_ENDPOINT_URL_S3=" + bucket.url() +
        " AWS_ACCESS_KEY_ID=" + bucket.state.key + " AWS_SECRET_ACCESS_KEY=" + bucket.state.secret;
    const std::string command = "cd " + path().string() +
                                " && env -u HF_TOKEN HOME=" + path().string() + variables +
                                (token.empty() ? "" : " HF_TOKEN=" + token) +
                                " " TESSERA_PROGRAM " " + arguments + " > out.txt 2> error.txt";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(path() / "out.txt"),
            read_file(path() / "error.txt")};
  }
  /// What a command prints that succeeds.
  std::string tell(const std::string& arguments) const {
    const CommandAnswer answer = ask(arguments);
    INFO(arguments << "\n" << answer.out << answer.error);
    REQUIRE(answer.code == 0);
    return answer.out;
  }
  std::string refusal(const std::string& arguments) const {
    const CommandAnswer answer = ask(arguments);
    INFO(arguments << "\n" << answer.out << answer.error);
    CHECK(answer.code == 2);
    return answer.error;
  }
  /// The losses of the steps in a metrics file.
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> all;
    std::string text = read_file(path() / name);
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      all.push_back(nlohmann::json::parse(text.substr(at, text.find('\n', at) - at))["loss"]);
    }
    return all;
  }
  std::string token;  // of who asks the hub; empty: nobody
  HubServer hub;
  S3Server bucket;
};

}  // namespace tessera::testing
