// Small runs of the program, and what it answers about them.
#pragma once
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "folder.hpp"
#include "texts.hpp"

namespace asked {

using Json = nlohmann::json;
using tessera::testing::Folder;
using tessera::testing::lines_of;
using tessera::testing::read_file;

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Answer {
  int code = -1;
  std::string out;
  std::string error;
};

/// `tessera arguments` in the folder.
inline Answer ask(const Folder& folder, const std::string& arguments) {
  const std::string command = "cd " + folder.path().string() + " && " TESSERA_PROGRAM " " +
                              arguments + " > out.txt 2> error.txt";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out.txt"),
          read_file(folder / "error.txt")};
}

inline Json json_of(const Folder& folder, const std::string& arguments, int code = 0) {
  const Answer answer = ask(folder, arguments + " --json");
  INFO(arguments << "\n" << answer.out << answer.error);
  REQUIRE(answer.code == code);
  return Json::parse(answer.out);
}

inline void train(const Folder& folder, const std::string& more = "") {
  const Answer answer = ask(folder, "train run.toml " + more);
  INFO(more << "\n" << answer.out << answer.error);
  REQUIRE(answer.code == 0);
}

inline const std::string model = R"([model]
dim = 16
layers = 2
heads = 2
kv_heads = 2
ffn_dim = 32
)";

/// Completions of different lengths, one in each line.
inline std::string records(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += R"({"prompt": "n)" + std::to_string(i) + R"(: ", "completion": ")" +
            std::string(static_cast<std::size_t>(3 + i % 7), static_cast<char>('a' + i % 20)) +
            "\"}\n";
  }
  return text;
}

inline std::string config(const std::string& data, const std::string& train,
                          const std::string& more = "") {
  return model + "[data]\nseq_len = 24\nvalidation = 0\n" + data + "[train]\n" + train +
         "[checkpoint]\nfolder = \"saved\"\nevery = 4\nkeep = 0\n" + more;
}

inline const std::string jsonl = "jsonl = [\"rows.jsonl\"]\n";

inline const std::string sharded =
    "[mesh]\naxes = [\"shard\"]\nshape = [2]\n[[parallel]]\nstyle = \"FSDP\"\naxis = \"shard\"\n"
    "on = [\"model.layers.*\", \".\"]\n";
inline const std::string tensor_parallel =
    "[mesh]\naxes = [\"tensor\"]\nshape = [2]\n"
    "[[parallel]]\nstyle = \"ColwiseParallel\"\naxis = \"tensor\"\n"
    "on = [\"model.layers.*.self_attn.{q,k,v}_proj\", \"model.layers.*.mlp.{gate,up}_proj\"]\n"
    "[[parallel]]\nstyle = \"RowwiseParallel\"\naxis = \"tensor\"\n"
    "on = [\"model.layers.*.self_attn.o_proj\", \"model.layers.*.mlp.down_proj\"]\n";

}  // namespace asked
