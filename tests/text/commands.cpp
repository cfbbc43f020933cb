// What is done with a trained model: generate, chat, evaluate; serve on several ranks.
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"
#include "small_model.hpp"
#include "support.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.text;

using generation_test::conversation;
using generation_test::reference;
using generation_test::Trained;
using generation_test::trained;
using nlohmann::json;
using tessera::testing::small_model;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

/// Answers of `tessera chat` to these lines, greedily.
Result chat(const std::string& lines, const std::string& more = "",
            const std::string& model = trained().model) {
  const std::string input = trained().write("input", lines);
  return run_program("chat " + model + " --temperature 0 " + more + " <" + input);
}

}  // namespace

TEST_CASE("chat answers with the conversation before, from a folder or a checkpoint") {
  const Result folder = chat("Say two\nAgain\n\n/reset\nSay one\nAgain\n");
  INFO(folder.error);
  CHECK(folder.code == 0);
  CHECK(folder.out == "two 😀2\ntwo 😀2\none ü1\none ü1\n");
  CHECK(chat("Say two\nAgain\n\n/reset\nSay one\nAgain\n", "", trained().checkpoint).out ==
        folder.out);
  const Result history =
      chat("/system Be brief\nSay one\n/history\n/exit\nSay two\n", "--tokens 1");
  INFO(history.out);
  CHECK(history.code == 0);
  has(history.out, "system: Be brief\nuser: Say one\nassistant: ");
  CHECK(history.out.find("Say two") == std::string::npos);
  // The token that the template writes behind answers ends them.
  CHECK(chat("Say two\n", "--tokenizer " + trained().path("other")).out == "two 😀2\n");
  // An answer that was cut by a stop string.
  CHECK(chat("Say two\n", "--stop ' 😀'").out == "two\n");
}

TEST_CASE("a GGUF file is a model to talk to") {
  const std::string file = trained().path("model.gguf");
  const std::string command =
      "checkpoint export " + trained().checkpoint + " --to " + file + " --format gguf";
  has(run_program(command).error, "GGUF cannot express this tokenizer");
  const std::string exported = Trained::succeed(command + " --dtype float32 --no-tokenizer");
  const Result result =
      chat("Say two\nAgain\n", "--tokenizer " + trained().path("tokenizer"), file);
  INFO(exported << result.error);
  CHECK(result.out == "two 😀2\ntwo 😀2\n");
}

TEST_CASE("chat refuses what it cannot do") {
  const auto refused = [](const Result& result, const std::string& part) {
    CHECK(result.code == 2);
    has(result.error, part);
  };
  refused(chat("/rest\n"), "/rest: there is no such command");
  refused(chat("a <|im_end|> b\n"), "contains the special token '<|im_end|>'");
  refused(chat("a \xFF b\n"), "the message of the user is not UTF-8");
  refused(chat("a\n", "", reference + "folders/plain"), "there is no tokenizer");
  refused(chat("a\n", "", "/nowhere"), "/nowhere: there is no such file or folder");
  refused(chat("a\n", "--chat-template /nowhere"), "the chat template cannot be read");
  refused(chat("a\n", "--tokenizer " + reference + "tokenizers/byte_level.json"),
          "has no chat template");
  const std::string wrong = trained().write("wrong.jinja", "{% include 'a' %}");
  refused(chat("a\n", "--chat-template " + wrong), "include");
  refused(run_program("chat " + trained().model + " </dev/null", "RANK=0 WORLD_SIZE=2 "),
          "a launcher has started several ranks");
}

namespace {

/// `tessera chat` in a terminal of its own.
class TerminalChat {
 public:
  explicit TerminalChat(const std::vector<std::string>& more) {
    const std::string model = trained().model;  // not in the child
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      std::vector<std::string> words = {TESSERA_PROGRAM, "chat", model, "--temperature", "0"};
      words.insert(words.end(), more.begin(), more.end());
      std::vector<char*> arguments;
      for (std::string& word : words) {
        arguments.push_back(word.data());
      }
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~TerminalChat() { close(terminal_); }
  TerminalChat(const TerminalChat&) = delete;
  TerminalChat& operator=(const TerminalChat&) = delete;

  /// At the next prompt; waits for the echo.
  void type(const std::string& keys) {
    read_until([&] { return text.ends_with("> "); });
    const std::size_t before = text.size();
    REQUIRE(write(terminal_, keys.data(), keys.size()) == std::ssize(keys));
    read_until([&] { return text.size() > before; });
  }
  /// Kills the rank, whose process is a child of the program's.
  void kill_rank(int rank) const {
    const std::string own = std::to_string(child_);
    std::istringstream children(read_file("/proc/" + own + "/task/" + own + "/children"));
    pid_t process = 0;
    for (int i = 0; i <= rank; ++i) {
      REQUIRE(children >> process);
    }
    kill(process, SIGKILL);
  }
  /// The exit code, when it has ended; -1 where it does not.
  int end() {
    read_until([] { return false; });
    int status = 0;
    waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string text;

 private:
  template <class Enough>
  void read_until(const Enough& enough) {
    std::array<char, 4096> bytes{};
    while (!enough()) {
      pollfd waiting{.fd = terminal_, .events = POLLIN, .revents = 0};
      constexpr int milliseconds = 60000;
      if (poll(&waiting, 1, milliseconds) == 0) {
        kill(child_, SIGKILL);
        break;
      }
      const ssize_t got = read(terminal_, bytes.data(), bytes.size());
      if (got <= 0) {
        break;  // the program has ended
      }
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
  }

  int terminal_ = -1;
  pid_t child_ = -1;
};

}  // namespace

TEST_CASE("chat in a terminal asks again after an error") {
  for (const std::vector<std::string>& ranks :
       std::vector<std::vector<std::string>>{{}, {"--ranks", "2"}}) {
    TerminalChat chat(ranks);
    chat.type("/rest\n");
    chat.type("Say two\n");
    chat.type("/exit\n");
    CHECK(chat.end() == 0);
    INFO(chat.text);
    CHECK(chat.text.starts_with("/help lists the commands.\r\n> "));
    has(chat.text, "error: /rest: there is no such command");
    has(chat.text, "two 😀2\r\n> ");
  }
}

TEST_CASE("a rank that dies ends a chat, and is named") {
  TerminalChat chat({"--context", "2"});
  chat.type("Say two\n");
  chat.type("Again\n");
  chat.kill_rank(1);
  CHECK(chat.end() == 1);
  INFO(chat.text);
  has(chat.text, "two 😀2\r\n> ");
  has(chat.text, "error: rank 1 was killed by signal 9");
}

TEST_CASE("Ctrl-C at the prompt ends all ranks of a chat") {
  TerminalChat chat({"--ranks", "2"});
  chat.type("Say two\n");
  chat.type("\x03");
  CHECK(chat.end() == 130);
  INFO(chat.text);
  has(chat.text, "two 😀2\r\n> ");
  CHECK(chat.text.find("error") == std::string::npos);
}

namespace {

/// A model of one step, whose tokenizer adds a token at the end of each text; `more`: overrides.
std::string ends_texts(const Folder& folder, const std::string& more) {
  json file = json::parse(read_file(reference + "tokenizers/byte_level.json"));
  int id = 0;
  for (const json& token : file["added_tokens"]) {
    id = token["content"] == "<|im_end|>" ? token["id"].get<int>() : id;
  }
  REQUIRE(id > 0);
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "<|im_end|>"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens",
       {{"<|im_end|>", {{"id", "<|im_end|>"}, {"ids", {id}}, {"tokens", {"<|im_end|>"}}}}}}};
  folder.write("tokenizer/tokenizer.json", file.dump());
  folder.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  folder.write("pairs.jsonl", R"({"prompt": "one<|im_end|>two", "completion": " three"})"
                              "\n");
  folder.write("run.toml",
               small_model({.dim = 16, .layers = 1, .heads = 2}) +
                   "[data]\ntokenizer = \"tokenizer\"\njsonl = [\"pairs.jsonl\"]\n"
                   "seq_len = 64\nvalidation = 0\n[train]\nsteps = 1\nbatch = 1\n[log]\n"
                   "metrics = \"\"\n[checkpoint]\nfolder = \"saved\"\n");
  Trained::succeed("train " + (folder.path() / "run.toml").string() + " " + more);
  return (folder.path() / "saved/step-00000001").string();
}

}  // namespace

TEST_CASE("prompts have the tokens that they have in training") {
  for (const std::string special : {"read", "letters"}) {
    const Folder folder;
    const std::string checkpoint = ends_texts(folder, "data.special_tokens=" + special);
    const tessera::text::TextModel model(checkpoint);
    const tessera::tokenize::Tokenizer& tokenizer = *model.tokenizer().tokenizer;
    const auto ids = tessera::text::prompt_tokens(model, "one<|im_end|>two");
    const auto wanted = tokenizer.encode(
        "one<|im_end|>two", {.add_special = false, .parse_special = special == "read"});
    CHECK(ids == std::vector<std::int64_t>(wanted.begin(), wanted.end()));
    // The rows of the run begin with them.
    std::string shown;
    for (const std::int64_t id : ids) {
      shown += "|" + std::to_string(id) + " ";
    }
    const std::string row = Trained::succeed("data show " + (folder.path() / "run.toml").string() +
                                             " --rows 1 data.special_tokens=" + special);
    std::string numbers;
    for (std::size_t at = row.find('|'); at != std::string::npos; at = row.find('|', at + 1)) {
      const std::size_t end = row.find_first_not_of("0123456789", at + 1);
      if (end > at + 1 && (row[end] == ' ' || row[end] == '}')) {
        numbers += row.substr(at, end - at) + " ";
      }
    }
    INFO(row);
    CHECK(numbers.starts_with(shown));
  }
  const Folder folder;
  const tessera::text::TextModel model(ends_texts(folder,
                                                  "data.special_tokens=refuse "
                                                  "data.bad_records=refuse data.jsonl=[] "
                                                  "'data.text=[run.toml]' data.seq_len=8"));
  CHECK_THAT(trainer_test::input_error([&] { tessera::text::prompt_tokens(model, "a<|im_end|>"); }),
             Catch::Contains("contains the special token '<|im_end|>'"));
}

TEST_CASE("a file of prompts has a text for each, whatever the batch is") {
  const std::string prompts =
      trained().write("prompts.jsonl", R"({"prompt": "Question: colour of grass\nAnswer:"})"
                                       "\n"
                                       R"({"prompt": "Q"})"
                                       "\n\n"
                                       R"({"prompt": "Question: colour of blood\nAnswer:"})"
                                       "\n"
                                       R"({"prompt": "Question: colour of"})"
                                       "\n");
  const std::string command = "generate " + trained().model + " --prompts " + prompts + " --json";
  const std::string together = Trained::succeed(command + " --temperature 0 --tokens 12");
  std::istringstream lines(together);
  std::vector<json> texts;
  for (std::string line; std::getline(lines, line);) {
    texts.push_back(json::parse(line));
  }
  REQUIRE(texts.size() == 4);
  CHECK(texts[0]["text"] == " green");
  CHECK(texts[0]["end"] == "token");
  CHECK(texts[2]["text"] == " red");
  CHECK(texts[1]["prompt"] == "Q");
  CHECK(Trained::succeed(command + " --temperature 0 --tokens 12 --batch 1") == together);
  // What is drawn is the seed's and the prompt's, and not the batch's.
  const std::string drawn =
      command + " --temperature 5 --top-p 0.99 --top-k 400 --repetition-penalty 1.1 --tokens 12 ";
  const std::string first = Trained::succeed(drawn + "--seed 7");
  CHECK(Trained::succeed(drawn + "--seed 7 --batch 3") == first);
  CHECK(Trained::succeed(drawn + "--seed 8") != first);
  const std::string one = "generate " + trained().model + " --prompt 'Question: colour of night";
  CHECK(Trained::succeed(one + "\nAnswer:' --temperature 0 --stop ack --stop xyz") ==
        "Question: colour of night\nAnswer: bl\n");
  const auto refused = [](const std::string& words, const std::string& part) {
    const Result result = run_program("generate " + trained().model + " " + words);
    CHECK(result.code == 2);
    has(result.error, part);
  };
  refused("", "give --prompt TEXT, or --prompts FILE");
  refused("--prompts " + trained().write("empty", "\n"), "there is no prompt in it");
  refused("--prompts " + trained().write("bad.jsonl", "{\"prompt\": 3}\n"), "bad.jsonl:1");
  refused("--prompt a --top-p 0", "top_p is out of range");
  refused("--prompt a --stop ''", "stop string: it is empty");
}

TEST_CASE("evaluate measures perplexity, choices and answers") {
  const std::string questions = trained().write(
      "questions.jsonl",
      R"({"question": "colour of grass", "choices": ["red", "green", "black"], "answer": 1})"
      "\n"
      R"({"question": "colour of blood", "choices": {"text": ["red", "green"], "label": ["A", "B"]}, "answerKey": "A"})"
      "\n"
      R"({"ctx": "colour of night", "endings": ["black", "red"], "label": "1"})"
      "\n"
      R"({"question": "colour of night", "answer": ["dark", "black"]})"
      "\n"
      R"({"question": "colour of grass", "answer": "blue"})"
      "\n");
  const std::string to = trained().path("results.json");
  const std::string command =
      "evaluate " + trained().model + " --questions " + questions + " --jsonl " +
      trained().path("facts.jsonl") + " " + trained().path("chats.jsonl") + " --text " +
      trained().write("text.txt", "Question: colour of grass\nAnswer: green");
  const json results = json::parse(Trained::succeed(command + " --json --to " + to));
  CHECK(json::parse(read_file(to)) == results);
  REQUIRE(results["results"].size() == 4);
  const json& text = results["results"][0];
  const json& records = results["results"][1];
  const json& choices = results["results"][2];
  const json& matches = results["results"][3];
  CHECK(text["texts"] == 1);
  CHECK(text["bits_per_byte"].get<double>() ==
        Approx(text["loss"].get<double>() * text["tokens"].get<double>() / std::log(2) / 39));
  CHECK(records["texts"] == 5);
  CHECK(records["perplexity"].get<double>() < 1.2);  // learned by heart
  CHECK(choices["questions"] == 3);                  // the last of these says that the night is red
  CHECK(choices["accuracy"].get<double>() == Approx(2.0 / 3));
  CHECK(choices["accuracy_normalized"].get<double>() == Approx(2.0 / 3));
  CHECK(choices["accuracy_error"].get<double>() == Approx(std::sqrt(2.0 / 9 / 2)));
  CHECK(matches["exact_match"] == 0.5);
  const std::string table = Trained::succeed(command);
  has(table, "multiple choice");
  has(table, "exact_match 0.5000");
  const auto refused = [](const std::string& words, const std::string& part) {
    const Result result = run_program("evaluate " + trained().model + " " + words);
    CHECK(result.code == 2);
    has(result.error, part);
  };
  const auto question = [](const std::string& line) {
    return "--questions " + trained().write("bad.jsonl", "\n" + line + "\n");
  };
  refused("", "give --text, --jsonl, --questions or --tasks");
  refused(question("{"), "bad.jsonl:2: ");
  refused(
      question(R"({"question": "a", "choices": ["b"], "answer": 1})"),
      "the answer is none of the choices (expected 0 to 0, a letter, or the text of one, got 1)");
  refused(question(R"({"question": "a"})"), "there is no 'answer'");
  refused(question(R"({"answer": "a"})"), "there is no text 'question'");
  refused("--jsonl " + trained().write("bad.jsonl", "{\"x\": 1}\n"), "bad.jsonl:1");
}

TEST_CASE("questions whose answers have two readings are refused") {
  const auto refusal = [](const std::string& question) {
    const std::string file = trained().write("question.jsonl", question + "\n");
    return trainer_test::input_error([&] { tessera::text::read_questions(file); });
  };
  const auto right = [](const std::string& question) {
    const std::string file = trained().write("question.jsonl", question + "\n");
    return tessera::text::read_questions(file).at(0).right;
  };
  const std::string begin = R"({"question": "q", "choices": )";
  has(refusal(begin + R"(["1", "2", "3"], "answer": "1"})"),
      "the answer \"1\" is read in two ways: as the text of a choice it is choice 0, as a number "
      "from 0 it is choice 1");
  has(refusal(begin + R"(["B", "A"], "answer": "A"})"), "as a letter it is choice 0");
  CHECK(right(begin + R"(["A", "B"], "answer": "B"})") == 1);
  CHECK(right(begin + R"(["1", "2", "3"], "answer": 1})") == 1);
  CHECK(right(begin + R"(["x", "y"], "answer": "B"})") == 1);
  CHECK(right(begin + R"(["x", "y"], "answer": "1"})") == 1);
  // A label is nothing else.
  CHECK(right(begin + R"({"text": ["2", "1"], "label": ["1", "2"]}, "answer": "1"})") == 0);
  has(refusal(begin + R"({"text": ["x", "y"], "label": ["1", "2"]}, "answer": 1})"),
      "as a label it is choice 0, as a number from 0 it is choice 1");
  const Result same =
      run_program("evaluate " + trained().model + " --format 'Answer:' --questions " +
                  trained().write("q.jsonl", begin + R"(["x", "y"], "answer": 1})"));
  CHECK(same.code == 2);
  has(same.error, "--format: it does not contain {question}, so every prompt would be the same");
}

TEST_CASE("evaluate has the same bits on any number of copies, and nearly so on any ranks") {
  std::string text;
  std::string records;
  std::string questions;
  for (int i = 0; i < 5; ++i) {  // which no number of copies below divides
    text += "Question: colour of grass " + std::to_string(i) + "\nAnswer: green\n";
    records += conversation({"Say " + std::string(static_cast<std::size_t>(i), 'x'), "one"}).dump();
    records += "\n";
    questions +=
        json{{"question", "colour of " + std::to_string(i)},
             {"choices", {"red", "green", "black"}},
             {"answer", i % 3}}
            .dump() +
        "\n" +
        json{{"question", "colour of grass" + std::string(static_cast<std::size_t>(i), ' ')},
             {"answer", "green"}}
            .dump() +
        "\n";
  }
  const std::string command =
      "evaluate " + trained().model + " --json --text " + trained().write("several.txt", text) +
      " --length 60 --stride 20 --jsonl " + trained().write("several.jsonl", records) +
      " --questions " + trained().write("asked.jsonl", questions) + " --tokens 4 ";
  const std::string alone = Trained::succeed(command);
  CHECK(Trained::succeed(command + "--ranks 2 --split 1") == alone);
  CHECK(Trained::succeed(command + "--ranks 3 --split 1") == alone);
  const std::string together = Trained::succeed(command + "--ranks 2");
  CHECK(Trained::succeed(command + "--ranks 4 --split 2") == together);
  const json expected = json::parse(alone)["results"];
  for (const std::string& got : {together, Trained::succeed(command + "--ranks 4"),
                                 Trained::succeed(command + "--context 2")}) {
    const json results = json::parse(got)["results"];
    REQUIRE(results.size() == expected.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      REQUIRE(results[i].size() == expected[i].size());
      for (const auto& [name, value] : expected[i].items()) {
        INFO(name);
        if (value.is_number_float()) {
          CHECK(results[i][name].get<double>() == Approx(value.get<double>()).epsilon(1e-6));
        } else {
          CHECK(results[i][name] == value);
        }
      }
    }
  }
}

TEST_CASE("texts are those of one rank on several, whatever is drawn") {
  const std::string prompts = trained().write(
      "prompts.txt", "Question: colour of grass\nSay\nQuestion: colour\na\nQuestion:\n");
  const std::string command = "generate " + trained().model + " --prompts " + prompts + " --json ";
  for (const std::string& options : {std::string("--temperature 0 --tokens 8 "),
                                     std::string("--temperature 1.5 --seed 7 --tokens 8 ")}) {
    const std::string alone = Trained::succeed(command + options);
    CHECK(Trained::succeed(command + options + "--ranks 3 --split 1") == alone);
    CHECK(Trained::succeed(command + options + "--ranks 2") == alone);
    CHECK(Trained::succeed(command + options + "--ranks 4 --split 2") == alone);
    CHECK(Trained::succeed(command + options + "--context 2") == alone);
    CHECK(Trained::succeed(command + options + "--ranks 4 --context 2 --split 1") == alone);
  }
  const std::string lines = "Say one\n/reset\nSay two\nAgain\n/history\n";
  const Result one = chat(lines);
  CHECK(one.code == 0);
  CHECK(chat(lines, "--ranks 2").out == one.out);
  CHECK(chat(lines, "--ranks 4", trained().checkpoint).out == one.out);
  server_test::Served server({"--ranks", "4", "--context", "2"});
  const auto answer = server_test::ask(
      server.port,
      server_test::post(json{{"messages", {{{"role", "user"}, {"content", "Say two"}}}}}.dump()));
  REQUIRE(answer.status == 200);
  CHECK(json::parse(answer.body)["choices"][0]["message"]["content"] == "two 😀2");
  CHECK(server.stop().code == 0);
}

TEST_CASE("ranks that cannot have the model are refused before they start") {
  const auto refused = [](const std::string& words, const std::string& part) {
    const Result result = run_program("generate " + trained().model + " --prompt a " + words);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    has(result.error, part);
    CHECK(result.error.find("error:") == result.error.rfind("error:"));
  };
  refused("--ranks 8",
          "8 ranks for a copy of the model: module 'model.layers.0.self_attn.q_proj': its 4 heads "
          "cannot be split over 8 ranks");
  refused("--ranks 3", "its 4 heads cannot be split over 3 ranks");
  refused("--ranks 4 --split 3", "4 ranks do not make copies of the model with 3 ranks each");
  refused("--ranks 2 --split 4", "2 ranks do not make copies of the model with 4 ranks each");
  refused("--ranks 3 --context 2", "--context: 3 ranks do not split texts into 2 parts");
  refused("--ranks 4 --context 2 --split 4",
          "--split: 4 ranks do not make copies of the model with 8 ranks each; choose a divisor of "
          "--ranks / --context");
  refused("--ranks 0", "--ranks");
  const Result launched =
      run_program("generate " + trained().model + " --prompt a", "RANK=0 WORLD_SIZE=2 ");
  CHECK(launched.code == 2);
  has(launched.error, "start the program by itself, with --ranks N");
}

TEST_CASE("shots and the likelihoods after them are those of transformers") {
  const json stored = json::parse(read_file(reference + "generation/shots.json"));
  const std::string tokenizer = reference + "generation/characters.json";
  const std::string folder = reference + stored["folder"].get<std::string>();
  const auto lines = [](const json& questions) {
    std::string all;
    for (const json& question : questions) {
      all += question.dump() + "\n";
    }
    return all;
  };
  const std::string questions = trained().write("shots.jsonl", lines(stored["questions"]));
  const std::string examples = trained().write("examples.jsonl", lines(stored["examples"]));
  const auto asked = tessera::text::read_questions(questions);
  const auto shown = tessera::text::read_questions(examples);
  const tessera::text::TextModel model({folder, tokenizer});
  REQUIRE(stored["cases"].size() == 4);
  for (const json& one : stored["cases"]) {
    const bool own = one["own"].get<bool>();
    tessera::text::QuestionOptions options;
    options.shots = one["shots"].get<std::int64_t>();
    const std::vector<std::string> prompts = tessera::text::question_prompts(
        asked, own ? std::vector<tessera::text::Question>() : shown, options);
    REQUIRE(prompts.size() == one["answers"].size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CHECK(prompts[i] == one["answers"][i]["prompt"].get<std::string>());
      const auto expected = one["answers"][i]["likelihoods"].get<std::vector<double>>();
      const auto got = tessera::text::choice_likelihoods(model, prompts[i], asked[i].choices);
      REQUIRE(got.size() == expected.size());
      for (std::size_t choice = 0; choice < got.size(); ++choice) {
        CHECK(got[choice] == Approx(expected[choice]).epsilon(1e-5));
      }
    }
    const json results = json::parse(Trained::succeed(
        "evaluate " + folder + " --tokenizer " + tokenizer + " --json --questions " + questions +
        " --shots " + std::to_string(options.shots) +
        (own ? std::string() : " --shots-from " + examples) + " --ranks 2"));
    CHECK(results["results"][0]["accuracy"] == one["accuracy"]);
  }
  // Drawn shots: others for each question, never the question itself, the same for a seed.
  tessera::text::QuestionOptions drawn;
  drawn.shots = 2;
  drawn.shots_seed = 1;
  drawn.format = "<{question}>";
  const auto prompts = tessera::text::question_prompts(asked, {}, drawn);
  CHECK(prompts == tessera::text::question_prompts(asked, {}, drawn));
  drawn.shots_seed = 2;
  CHECK(prompts != tessera::text::question_prompts(asked, {}, drawn));
  for (std::size_t i = 0; i < asked.size(); ++i) {
    CHECK(prompts[i].ends_with("\n\n<" + asked[i].text + ">"));
    CHECK(prompts[i].find("<" + asked[i].text + "> ") == std::string::npos);
    CHECK(std::ranges::count(prompts[i], '<') == 3);
  }
  // Without choices, the first answer is shown.
  const std::vector<tessera::text::Question> open = {{.text = "q", .answers = {"first", "second"}},
                                                     {.text = "r"}};
  drawn.shots = 1;
  CHECK(tessera::text::question_prompts(std::span(open).last(1), std::span(open).first(1), drawn) ==
        std::vector<std::string>{"<q> first\n\n<r>"});
  CHECK_THROWS_WITH(tessera::text::question_prompts(open, std::span(open).last(1), drawn),
                    "--shots: an example has no answer: 'r'");
  const auto refused = [&](const std::string& words, const std::string& part) {
    const Result result =
        run_program("evaluate " + trained().model + " --questions " + questions + " " + words);
    CHECK(result.code == 2);
    has(result.error, part);
  };
  refused("--shots 5", "--shots: there are fewer examples (expected at most 4, got 5)");
  refused("--shots 4 --shots-from " + examples, "expected at most 3, got 4");
  refused("--shots-from " + examples, "--shots");
  refused("--shots 1 --shots-from " + trained().write("none.jsonl", "\n"),
          "there is no question in it");
}

TEST_CASE("windows score each token once, with as much text before it as they have") {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    lines += "Question: colour of grass\nAnswer: green\n";
  }
  const std::vector<std::string> files = {trained().write("long.txt", lines)};
  const tessera::text::TextModel model(trained().model);
  std::vector<std::int64_t> tokens = tessera::text::prompt_tokens(model, lines);
  tokens.push_back(model.tokenizer().special.eos.value());
  const auto count = std::ssize(tokens);
  for (const auto& [length, stride] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {4000, 0}, {7, 0}, {7, 3}, {7, 1}, {1, 0}}) {
    INFO("length " << length << ", stride " << stride);
    const std::int64_t step = stride == 0 ? length : stride;
    double expected = 0;
    for (std::int64_t t = 1; t < count; ++t) {
      // The first window that reaches token t.
      const std::int64_t begin = t <= length ? 0 : (t - length + step - 1) / step * step;
      const std::vector<std::int64_t> window(tokens.begin() + begin, tokens.begin() + t + 1);
      std::vector<std::uint8_t> last(window.size(), 0);
      last.back() = 1;
      expected -= tessera::text::log_likelihood(model, window, last);
    }
    const tessera::text::Perplexity got =
        tessera::text::text_perplexity(model, files, {.length = length, .stride = stride});
    CHECK(got.tokens == count - 1);
    CHECK(got.loss == Approx(expected / static_cast<double>(count - 1)).epsilon(1e-4));
    CHECK(got.perplexity() == Approx(std::exp(got.loss)));
  }
}
