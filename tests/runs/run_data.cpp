// Runs on texts and records with a tokenizer: what is trained, where a run continues, what a
// checkpoint remembers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using nlohmann::json;
using tessera::testing::small_model;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

const std::string reference = std::string(TESSERA_SOURCE_FOLDER) + "/tests/reference/data/";

/// A folder with a small tokenizer, and a template for conversations.
void write_tokenizer(const Folder& folder, const std::string& name = "tokenizer") {
  folder.write(name + "/tokenizer.json", read_file(reference + "tokenizers/byte_level.json"));
  folder.write(name + "/tokenizer_config.json",
               json{{"eos_token", "<|im_end|>"},
                    {"bos_token", "<s>"},
                    {"chat_template", read_file(reference + "chat/chatml.jinja")}}
                   .dump());
}

/// Answers of different lengths, so that rows have different numbers of trained tokens.
std::string chats(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::string answer;
    for (int k = 0; k <= i % 7; ++k) {
      answer += (k == 0 ? "" : " ") + std::to_string(i + k);
    }
    text += json{{"messages",
                  {{{"role", "user"}, {"content", "Count from " + std::to_string(i)}},
                   {{"role", "assistant"}, {"content", answer}}}}}
                .dump() +
            "\n";
  }
  return text;
}

std::string config(const std::string& data, const std::string& more = "") {
  return small_model({.dim = 16, .layers = 1, .heads = 2}) + "[data]\ntokenizer = \"tokenizer\"\n" +
         data +
         "\nseq_len = 64\nvalidation = 0.2\n[train]\nsteps = 4\nbatch = 8\n[optimizer]\nlr = "
         "1e-2\n[log]\nmetrics = \"metrics.jsonl\"\n[checkpoint]\nevery = 2\nkeep = 0\n" +
         more;
}

const std::string replicated =
    "[mesh]\naxes = [\"data\"]\nshape = [2]\n[[parallel]]\nstyle = \"Replicate\"\naxis = "
    "\"data\"\non = [\".\"]\n";

/// The losses of a run's steps, and of its validations.
struct Losses {
  std::vector<double> steps;
  std::vector<double> validations;
};

Losses losses(const Folder& folder) {
  Losses all;
  std::istringstream lines(read_file(folder.path() / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json one = json::parse(line);
    all.steps.push_back(one.at("loss"));
    if (one.contains("validation_loss")) {
      all.validations.push_back(one.at("validation_loss"));
    }
  }
  return all;
}

Result train(const Folder& folder, const std::string& text, const std::string& more = "") {
  folder.write("run.toml", text);
  return run_program("train " + (folder.path() / "run.toml").string() + " " + more);
}

Losses trained(const Folder& folder, const std::string& text, const std::string& more = "") {
  const Result result = train(folder, text, more);
  INFO(result.error);
  REQUIRE(result.code == 0);
  return losses(folder);
}

void compare(const Losses& a, const Losses& b) {
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    CHECK(std::abs(a.steps[i] - b.steps[i]) < 2e-5);
  }
  CHECK(std::abs(a.validations.back() - b.validations.back()) < 2e-5);
}

}  // namespace

TEST_CASE("the loss of a step is over its trained tokens, on any mesh and in any micro-batches") {
  const std::string data = "jsonl = [\"chats.jsonl\"]";
  const auto run = [&](const std::string& more, const std::string& overrides) {
    const Folder folder;
    write_tokenizer(folder);
    folder.write("chats.jsonl", chats(60));
    return trained(folder, config(data, more), overrides);
  };
  const Losses whole = run("", "");
  // Before anything is learned, each token has the loss of a guess, whatever is masked.
  CHECK(std::abs(whole.steps[0] - std::log(660.0)) < 0.5);
  compare(run("", "train.micro_batch=1"), whole);
  compare(run(replicated, ""), whole);
  compare(run(replicated, "graph.capture=true"), whole);
}

TEST_CASE("a run on records continues on another mesh with the rows that come next") {
  const std::string data =
      "sources = [{ jsonl = [\"chats.jsonl\"], weight = 3 }, { text = [\"book.txt\"] }]";
  const auto write = [&](const Folder& folder) {
    write_tokenizer(folder);
    folder.write("chats.jsonl", chats(60));
    std::string book;
    for (int i = 0; i < 300; ++i) {
      book += "Line " + std::to_string(i) + " of a book.\n";
    }
    folder.write("book.txt", book);
  };
  const Folder whole;
  write(whole);
  const Losses expected = trained(whole, config(data));
  const Folder folder;
  write(folder);
  trained(folder, config(data), "train.steps=2");
  compare(trained(folder, config(data, replicated)), expected);
  // Files that were compressed meanwhile have the same rows; both ranks need what is in them.
  const Folder packed;
  write(packed);
  setenv("TESSERA_DATA_CACHE", (packed.path() / "cache").c_str(), 1);
  trained(packed, config(data), "train.steps=2");
  for (const char* const name : {"chats.jsonl", "book.txt"}) {
    REQUIRE(std::system(("gzip " + (packed.path() / name).string()).c_str()) == 0);
  }
  compare(
      trained(packed, config("sources = [{ jsonl = [\"chats.jsonl.gz\"], weight = 3 }, { text = "
                             "[\"book.txt.gz\"] }]",
                             replicated)),
      expected);
  unsetenv("TESSERA_DATA_CACHE");
  const Result other = train(folder, config(data), "data.sources=[{text=[book.txt]}]");
  CHECK(other.code == 2);
  has(other.error, "data.content");
}

TEST_CASE("a checkpoint remembers its tokenizer, and an export has its files") {
  const Folder folder;
  write_tokenizer(folder);
  folder.write("chats.jsonl", chats(60));
  trained(folder, config("jsonl = [\"chats.jsonl\"]"));
  const std::string checkpoint = (folder.path() / "checkpoints/step-00000004").string();
  const std::string generate = "generate " + checkpoint + " --prompt Count --tokens 5 ";
  const Result text = run_program(generate);
  INFO(text.error);
  CHECK(text.code == 0);
  CHECK(text.out.starts_with("Count"));
  const std::string to = (folder.path() / "export").string();
  REQUIRE(run_program("checkpoint export " + checkpoint + " --to " + to).code == 0);
  for (const char* const file : {"tokenizer.json", "tokenizer_config.json"}) {
    CHECK(read_file(to + "/" + file) == read_file(folder.path() / "tokenizer" / file));
  }
  // The exported folder is a model with its own tokenizer.
  folder.write("next.toml",
               "[model]\nfrom = \"export\"\n[data]\njsonl = [\"chats.jsonl\"]\nseq_len = 64\n"
               "validation = 0\n[train]\nsteps = 1\nbatch = 8\n[log]\nmetrics = "
               "\"\"\n[checkpoint]\nfolder = \"\"\n");
  const Result next = run_program("train " + (folder.path() / "next.toml").string());
  INFO(next.error);
  CHECK(next.code == 0);
  has(next.out, "tokenizer.json of " + to);
  // A token beyond the embedding is no matter, except where a text has it.
  folder.write("export/special_tokens_map.json", R"({"additional_special_tokens": ["[more]"]})");
  CHECK(run_program("train " + (folder.path() / "next.toml").string()).code == 0);
  CHECK(run_program("generate " + to + " --prompt Count --tokens 5").out == text.out);
  const Result beyond = run_program("generate " + to + " --prompt Count[more] --tokens 5");
  CHECK(beyond.code == 2);
  has(beyond.error, "the token '[more]' (id 653) at byte 5 of a text has no row in the embedding");
  std::filesystem::remove(to + "/special_tokens_map.json");
  // The tokenizer is kept beside the checkpoints: its own folder may change or go.
  std::filesystem::copy(folder.path() / "tokenizer", folder.path() / "copy");
  const std::string file = read_file(folder.path() / "tokenizer/tokenizer.json");
  folder.write("tokenizer/tokenizer.json", file + "\n");
  CHECK(run_program(generate).out == text.out);
  has(train(folder, config("jsonl = [\"chats.jsonl\"]"), "train.steps=5").error, "data.tokenizer");
  std::filesystem::remove_all(folder.path() / "tokenizer");
  CHECK(run_program(generate).out == text.out);
  std::filesystem::rename(folder.path() / "checkpoints", folder.path() / "moved");
  const std::string moved = "generate " + (folder.path() / "moved/step-00000004").string() +
                            " --prompt Count --tokens 5 ";
  CHECK(run_program(moved).out == text.out);
  // Another content of what was kept is refused; a copy elsewhere can be named.
  std::filesystem::path kept;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "moved")) {
    kept = entry.path().filename().string().starts_with("tokenizer-") ? entry.path() : kept;
  }
  REQUIRE_FALSE(kept.empty());
  folder.write("moved/" + kept.filename().string() + "/tokenizer.json", file + "\n");
  has(run_program(moved).error, "has changed since the model was trained");
  std::filesystem::remove_all(kept);
  has(run_program(moved).error, "is not there; name it with --tokenizer");
  CHECK(run_program(moved + "--tokenizer " + (folder.path() / "copy").string()).out == text.out);
}

TEST_CASE("the tokenizer in a GGUF file is kept beside the checkpoints") {
  const Folder folder;
  folder.write("texts.txt", "Count one two three. Count four five six.\n" + std::string(800, 'a'));
  const auto run_toml = [](const std::string& model) {
    return "[model]\n" + model +
           "[data]\ntext = [\"texts.txt\"]\nseq_len = 16\nvalidation = 0\n"
           "[train]\nsteps = 2\nbatch = 4\n[log]\nmetrics = \"\"\n[checkpoint]\nfolder = \"";
  };
  folder.write(
      "first.toml",
      run_toml("dim = 32\nlayers = 1\nheads = 2\nkv_heads = 2\nffn_dim = 32\n") + "first\"\n");
  REQUIRE(run_program("train " + folder / "first.toml").code == 0);
  REQUIRE(run_program("checkpoint export " + folder / "first/step-00000002" + " --to " +
                      folder / "model" + " --format gguf")
              .code == 0);
  folder.write("next.toml", run_toml("from = \"model/model.gguf\"\n") + "next\"\n");
  const Result next = run_program("train " + folder / "next.toml");
  INFO(next.error);
  REQUIRE(next.code == 0);
  const std::string generate = "generate " + folder / "next/step-00000002" +
                               " --prompt 'Count one' --tokens 5 --temperature 0";
  const Result text = run_program(generate);
  REQUIRE(text.code == 0);
  std::filesystem::rename(folder / "model", folder / "gone");
  CHECK(run_program(generate).out == text.out);
  folder.write("model/model.gguf", "something else");
  CHECK(run_program(generate).out == text.out);
  // A further run takes the tokenizer that is kept, with the same ids.
  folder.write("third.toml", run_toml("from = \"next/step-00000002\"\n") + "third\"\n");
  const Result third = run_program("train " + folder / "third.toml");
  INFO(third.error);
  CHECK(third.code == 0);
  std::filesystem::path kept;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "next")) {
    kept = entry.path().filename().string().starts_with("tokenizer-") ? entry.path() : kept;
  }
  REQUIRE_FALSE(kept.empty());
  const std::string file = (kept / "tokenizer.json").string();
  folder.write("next/" + kept.filename().string() + "/tokenizer.json", read_file(file) + "\n");
  has(run_program(generate).error, "has changed since the model was trained");
  std::filesystem::remove_all(folder / "model");
  std::filesystem::rename(folder / "gone", folder / "model");
  CHECK(run_program(generate).out == text.out);  // the file itself is as it was
}

TEST_CASE("a checkpoint has the template, options and end tokens of its run") {
  const Folder folder;
  folder.write("tokenizer/tokenizer.json", read_file(reference + "tokenizers/byte_level.json"));
  folder.write(
      "tokenizer/tokenizer_config.json",
      json{{"chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}"}}.dump());
  folder.write("own.jinja",
               "{{ start }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
               "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
               "{% endif %}");
  folder.write("chats.jsonl", chats(60));
  trained(folder,
          config("jsonl = [\"chats.jsonl\"]\nchat_template = \"own.jinja\"\nend_tokens = "
                 "[\"<|im_end|>\"]\ntemplate_options = { start = \"begin \" }"),
          "train.steps=40 checkpoint.every=0");
  std::filesystem::remove(folder.path() / "own.jinja");
  const std::string checkpoint = (folder.path() / "checkpoints/step-00000040").string();
  const std::string jsonl = " --jsonl " + (folder.path() / "chats.jsonl").string() + " --json";
  const auto loss = [&](const std::string& model) {
    const Result result = run_program("evaluate " + model + jsonl);
    INFO(result.error);
    REQUIRE(result.code == 0);
    return json::parse(result.out).at("results").at(0).at("loss").get<double>();
  };
  const double own = loss(checkpoint);
  CHECK(own < 3);  // as trained: from 6.5 at first
  // An export has the template and the end token; options are said to be left out.
  const std::string to = (folder.path() / "export").string();
  const Result exported = run_program("checkpoint export " + checkpoint + " --to " + to);
  INFO(exported.error);
  REQUIRE(exported.code == 0);
  has(exported.out, "without the run's template_options {\"start\":\"begin \"}");
  has(read_file(to + "/chat_template.jinja"), "{{ start }}");
  CHECK(json::parse(read_file(to + "/generation_config.json")).at("eos_token_id").is_number());
  CHECK(std::abs(loss(to) - own) < 0.5);  // without "begin "
  // A checkpoint is a model to start from, with all of it.
  folder.write("next.toml",
               "[model]\nfrom = \"" + checkpoint +
                   "\"\n[data]\njsonl = [\"chats.jsonl\"]\nseq_len = 64\nvalidation = 0.5\n"
                   "[train]\nsteps = 1\nbatch = 8\n[optimizer]\nlr = 1e-9\n[log]\nmetrics = "
                   "\"metrics2.jsonl\"\n[checkpoint]\nfolder = \"next\"\n");
  const Result next = run_program("train " + (folder.path() / "next.toml").string());
  INFO(next.error);
  REQUIRE(next.code == 0);
  CHECK(std::abs(loss((folder.path() / "next/step-00000001").string()) - own) < 1e-4);
  const std::string pair = R"({"prompt": "one", "chosen": " two", "rejected": " three"})";
  folder.write("pairs.jsonl", pair + "\n" + pair + "\n");
  const Result compared =
      run_program("train " + (folder.path() / "next.toml").string() +
                  " train.objective=dpo data.jsonl=[pairs.jsonl] train.batch=2 data.validation=0 "
                  "checkpoint.folder='' log.metrics=''");
  INFO(compared.error);
  CHECK(compared.code == 0);
}

TEST_CASE("a run lasts some epochs, and a small part may be set aside") {
  const Folder folder;
  write_tokenizer(folder);
  folder.write("chats.jsonl", chats(20));
  const std::string text = small_model({.dim = 16, .layers = 1, .heads = 2}) +
                           "[data]\ntokenizer = \"tokenizer\"\njsonl = [\"chats.jsonl\"]\n"
                           "seq_len = 64\nvalidation = 0.1\n[train]\nbatch = 8\n[optimizer]\n"
                           "schedule = \"cosine\"\nwarmup = 4\n[log]\n"
                           "metrics = \"metrics.jsonl\"\n[checkpoint]\nfolder = \"\"\n";
  // 18 rows in batches of 8: 2.25 batches an epoch.
  const Losses twice = trained(folder, text, "train.epochs=2");
  CHECK(twice.steps.size() == 5);
  REQUIRE(twice.validations.size() == 1);
  // Two rows that are set aside have the loss that they have alone.
  const Losses steps = trained(folder, text, "train.steps=5");
  CHECK(steps.steps == twice.steps);
  CHECK(steps.validations == twice.validations);
  const Losses pairs = trained(folder, text, "train.steps=5 train.batch=2 optimizer.lr=1e-12");
  const Losses whole = trained(folder, text, "train.steps=5 optimizer.lr=1e-12");
  CHECK(std::abs(pairs.validations[0] - whole.validations[0]) < 1e-5);
  has(train(folder, text, "train.epochs=2 train.steps=3").error,
      "both say how long the run is; remove one of the two");
  has(train(folder, text, "train.epochs=0.5").error, "optimizer.warmup: is longer than the run");
}

TEST_CASE("a tokenizer that does not fit the model is refused before the run") {
  const Folder folder;
  write_tokenizer(folder);
  folder.write("text.txt", std::string(5000, 'a'));
  const std::string from = "[model]\nfrom = \"" + reference + "folders/plain\"\n";
  const Result larger =
      train(folder, from + "[data]\ntext = [\"text.txt\"]\ntokenizer = \"tokenizer\"\n");
  CHECK(larger.code == 2);
  has(larger.error, "vocabulary of 64 tokens (expected at least");
  has(train(folder, config("text = [\"text.txt\"]"), "data.tokenizer=nothing").error,
      "no kind of tokenizer 'nothing'");
  has(train(folder, config("text = [\"text.txt\"]"), "data.tokenizer_options.add=1").error, "add");
}

TEST_CASE("faults of records stop a run before it starts, with file and line") {
  const Folder folder;
  write_tokenizer(folder);
  const auto error = [&](const std::string& text, const std::string& more = "") {
    folder.write("chats.jsonl", text);
    const Result result = train(folder, config("jsonl = [\"chats.jsonl\"]"), more);
    CHECK(result.code == 2);
    return result.error;
  };
  has(error(chats(60) + "{broken\n" + chats(60)), "chats.jsonl:61: it is not JSON");
  has(error(chats(60), "data.seq_len=8"), "chats.jsonl:1: the document is longer than a row");
  has(error(chats(60), "data.chat_template=none.jinja"),
      "none.jinja: the chat template cannot be read");
  folder.write("other.jinja", "{% for m in messages %}\n{% include 'x' %}{% endfor %}");
  has(error(chats(60), "data.chat_template=other.jinja"),
      "other.jinja: line 2: the tag {% include");
  has(error(chats(3)), "too short");
}

TEST_CASE("faulty records are left out where the run says so, and counted") {
  const Folder folder;
  write_tokenizer(folder);
  folder.write("chats.jsonl", chats(30) + "{broken\n" + R"({"messages": []})" + "\n" +
                                  R"({"text": "another kind"})" + "\n" + chats(30));
  const std::string text = config("jsonl = [\"chats.jsonl\"]");
  has(train(folder, text).error, "3 faults");
  const Result skipped = train(folder, text, "data.bad_records=skip");
  INFO(skipped.error);
  CHECK(skipped.code == 0);
  has(skipped.out, "3 bad records (the first: ");
  has(skipped.out, "chats.jsonl:31: it is not JSON");
  // As if they were not there.
  const Losses without = losses(folder);
  const Folder clean;
  write_tokenizer(clean);
  clean.write("chats.jsonl", chats(30) + chats(30));
  CHECK(trained(clean, text).steps == without.steps);
  folder.write("texts.jsonl", std::string(R"({"text": "one"})") + "\n[1]\n" + R"({"text": ")" +
                                  std::string(40000, 'a') + "\"}\n");
  const std::string texts = config("jsonl = [\"texts.jsonl\"]");
  has(train(folder, texts).error, "texts.jsonl:2: ");
  const Result check = run_program("data check " + (folder.path() / "run.toml").string() +
                                   " data.bad_records=skip train.batch=1 data.seq_len=4");
  has(check.out, "1 bad records (the first: ");
  // Texts make a stream, so they do not share a source with conversations.
  folder.write("chats.jsonl", chats(60));
  has(train(folder, config("jsonl = [\"chats.jsonl\", \"texts.jsonl\"]")).error,
      "texts.jsonl: its records are of another kind than those of");
}

TEST_CASE("what a template leaves out stops a run, or is counted") {
  const Folder folder;
  write_tokenizer(folder);
  std::string records;
  for (int i = 0; i < 40; ++i) {
    records += json{{"id", i},
                    {"messages",
                     {{{"role", "user"}, {"content", "Count"}},
                      {{"role", "assistant"}, {"content", "one"}, {"reasoning", "thoughts"}}}}}
                   .dump() +
               "\n";
  }
  folder.write("chats.jsonl", records);
  const std::string text = config("jsonl = [\"chats.jsonl\"]");
  has(train(folder, text).error,
      "chats.jsonl:1: the template does not write the reasoning of message 2: 'thoughts'");
  const Result check = run_program("data check " + (folder.path() / "run.toml").string() +
                                   " 'data.allow_dropped=[\"reasoning\"]'");
  INFO(check.error);
  has(check.out, "40 contents that the template does not write (reasoning)");
  has(check.out, "members of records: id (40)");
  has(train(folder, text, "'data.allow_dropped=[\"thoughts\"]'").error,
      "'thoughts' is not a kind of contents (only content, system, ");
  has(train(folder, text, "'data.template_members=[\"tools\"]'").error,
      "'tools' is a variable of every template already");
}

TEST_CASE("special tokens that texts write are read, or their letters are, or they are refused") {
  const Folder folder;
  write_tokenizer(folder);
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "one two<|im_end|>";
  }
  folder.write("text.txt", text);
  const std::string run = config("text = [\"text.txt\"]");
  const auto rows = [&](const std::string& special) {
    folder.write("run.toml", run);
    return run_program("data show " + (folder.path() / "run.toml").string() +
                       " --rows 1 data.order=sequential data.special_tokens=" + special);
  };
  has(rows("read").out, "{<|im_end|>|");
  CHECK(rows("letters").out.find("{<|im_end|>|") == std::string::npos);
  has(rows("refuse").error, "text.txt:1: the text contains the special token '<|im_end|>'");
  REQUIRE(train(folder, run, "train.steps=1").code == 0);
  has(train(folder, run, "train.steps=2 data.special_tokens=letters").error, "data.special_tokens");
}

TEST_CASE("a token that ends answers can be named in the config") {
  const Folder folder;
  folder.write("tokenizer/tokenizer.json", read_file(reference + "tokenizers/byte_level.json"));
  folder.write("tokenizer/tokenizer_config.json",
               json{{"chat_template", read_file(reference + "chat/chatml.jinja")}}.dump());
  folder.write("chats.jsonl", chats(60));
  const std::string text = config("jsonl = [\"chats.jsonl\"]");
  has(train(folder, text).error, "would not learn to stop");
  has(train(folder, text, "'data.end_tokens=[\"<|nothing|>\"]'").error,
      "has no token '<|nothing|>'");
  CHECK(train(folder, text, "'data.end_tokens=[\"<|im_end|>\"]'").code == 0);
}

TEST_CASE("data show and data check print what is trained") {
  const Folder folder;
  write_tokenizer(folder);
  folder.write("chats.jsonl", chats(60) + "\n");
  folder.write("run.toml", config("jsonl = [\"chats.jsonl\"]", ""));
  const std::string run = (folder.path() / "run.toml").string();
  const Result check = run_program("data check " + run);
  INFO(check.error);
  CHECK(check.code == 0);
  has(check.out, "60 documents");
  has(check.out, "1 blank lines");
  has(check.out, "% of the positions hold tokens");
  const Result show = run_program("data show " + run + " --rows 1 data.order=sequential");
  CHECK(show.code == 0);
  has(show.out, "chats.jsonl:1: ");
  has(show.out, "<|im_start|>|");
  has(show.out, "{0|");  // the answer of the first record
  has(show.out, "{<|im_end|>|");
  const std::string page = (folder.path() / "page.html").string();
  REQUIRE(run_program("data show " + run + " --html " + page).code == 0);
  has(read_file(page), "<span class=\"trained\">&lt;|im_end|&gt;<sub>");
}

TEST_CASE("files to validate with are used instead of a share of the data") {
  const Folder folder;
  write_tokenizer(folder);
  folder.write("chats.jsonl", chats(60));
  folder.write("own.jsonl", chats(17));
  const std::string data = "jsonl = [\"chats.jsonl\"]\nvalidation_files = [\"own.jsonl\"]";
  std::string text = config(data);
  has(train(folder, text).error, "data.validation: data.validation_files is set too");
  folder.write("few.jsonl", chats(1));
  std::string few = text;
  few.replace(few.find("own.jsonl"), 9, "few.jsonl");
  few.erase(few.find("validation = 0.2\n"), 17);
  has(train(folder, few, "checkpoint.folder=few log.metrics=few.json").out,
      "validation   64 tokens");  // one row, and padding
  text.erase(text.find("validation = 0.2\n"), 17);
  const Result result = train(folder, text);
  INFO(result.error);
  CHECK(result.code == 0);
  has(result.out, "60 rows of 64");
  has(result.out, "validation   1.02 k tokens");  // two batches of the 17 rows
  const Result tokens =
      train(folder, small_model({.vocab = 101, .dim = 16, .layers = 1, .heads = 2}) +
                        "[data]\ntokens = [\"" + reference +
                        "curves/tokens.npy\"]\nseq_len = 8\nvalidation_files = [\"own.jsonl\"]\n");
  CHECK(tokens.code == 2);
  has(tokens.error, "the run has token ids only");
}

namespace {

/// 36 completions that fill 12 rows of 64 positions: 36, 16 and 12 in each, the token at their end
/// included.
std::string triples() {
  std::string text;
  for (int i = 0; i < 36; ++i) {
    const int positions = i % 3 == 0 ? 36 : i % 3 == 1 ? 16 : 12;
    // One position for each byte.
    const std::string prompt = "Say " + std::to_string(10 + i) + ":";
    std::string completion;
    while (std::ssize(prompt) + std::ssize(completion) < positions + 1) {
      completion += static_cast<char>('a' + (static_cast<int>(completion.size()) * i + i) % 26);
    }
    text += json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
  }
  return text;
}

std::string packed_config(const std::string& model, const std::string& mesh = "") {
  return model +
         "[data]\njsonl = [\"triples.jsonl\"]\nseq_len = 64\nvalidation_files = "
         "[\"triples.jsonl\"]\n[train]\nsteps = 4\n[optimizer]\nlr = 1e-3\n[log]\nmetrics = "
         "\"metrics.jsonl\"\n[checkpoint]\nfolder = \"\"\n" +
         mesh;
}

const std::string small_llama = small_model({.kv_heads = 2});
const std::string small_gpt2 = small_model({.family = "gpt2"});
const std::string packed = " data.packing=documents train.batch=12";

const std::string split_in_sequence = R"~([mesh]
axes = ["shard", "tensor"]
shape = [2, 2]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["model.embed_tokens"]
options = { input = "Replicate", output = "Shard(1)" }
[[parallel]]
style = "SequenceParallel"
axis = "tensor"
on = ["model.layers.*.{input,post_attention}_layernorm", "model.norm"]
[[parallel]]
style = "PrepareModuleInput"
axis = "tensor"
on = ["model.layers.*.{self_attn,mlp}"]
options = { input = "Shard(1)", desired = "Replicate" }
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.{q,k,v}_proj", "model.layers.*.mlp.{gate,up}_proj"]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"]
options = { output = "Shard(1)" }
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["lm_head"]
options = { input = "Shard(1)", output = "Shard(-1)" }
[[parallel]]
style = "LossParallel"
axis = "tensor"
on = ["loss"]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)~";

/// Two stages, whose sequences two ranks have.
const std::string split_in_stages = R"~([mesh]
axes = ["pipe", "context"]
shape = [2, 2]
[[parallel]]
style = "Pipeline"
axis = "pipe"
on = ["."]
[[parallel]]
style = "ContextParallel"
axis = "context"
on = ["**.inner_attention"]
options = { form = "ring" }
)~";

/// The largest difference of the losses of steps and validations.
double difference(const Losses& a, const Losses& b) {
  REQUIRE(a.steps.size() == b.steps.size());
  REQUIRE(a.validations.size() == b.validations.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    largest = std::max(largest, std::abs(a.steps[i] - b.steps[i]));
  }
  for (std::size_t i = 0; i < a.validations.size(); ++i) {
    largest = std::max(largest, std::abs(a.validations[i] - b.validations[i]));
  }
  return largest;
}

}  // namespace

TEST_CASE("packed rows give the losses of documents that are rows of their own") {
  const Folder folder;
  folder.write("triples.jsonl", triples());
  const std::string gpt2_shards =
      "[mesh]\naxes = [\"shard\"]\nshape = [2]\n[[parallel]]\nstyle = \"FSDP\"\naxis = "
      "\"shard\"\non = [\"transformer.h.*\", \".\"]\n";
  const std::string mode = "[mesh]\naxes = [\"data\"]\nshape = [2]\n";
  struct Case {
    std::string model;
    std::string mesh;
    std::string overrides;
  };
  const std::vector<Case> cases = {
      {small_llama, "", ""},
      {small_llama, "", " train.micro_batch=4 train.activation_checkpointing=true"},
      {small_llama, "", " graph.capture=true graph.executor=compiled"},
      {small_llama, replicated, " train.micro_batch=3"},
      {small_llama, split_in_sequence, ""},
      {small_llama, split_in_sequence, " graph.capture=true train.micro_batch=2"},
      {small_llama, split_in_stages, " train.micro_batch=3"},
      {small_llama, split_in_stages, " train.micro_batch=6 train.head_rows=50"},
      {small_llama, mode, " graph.capture=true graph.mode=fully_shard"},
      {small_gpt2, "", ""},
      {small_gpt2, gpt2_shards, " graph.capture=true"}};
  Losses alone;
  std::string model;
  for (const Case& one : cases) {
    INFO(one.model << one.mesh << one.overrides);
    if (model != one.model) {
      model = one.model;
      alone = trained(folder, packed_config(model), "train.batch=36");
    }
    const Losses together = trained(folder, packed_config(model, one.mesh), packed + one.overrides);
    CHECK(difference(together, alone) <= 1e-6 * alone.steps[0]);
  }
}

TEST_CASE("a packed run continues on another mesh, and not with rows of another kind") {
  const std::string data = "jsonl = [\"chats.jsonl\"]\npacking = \"documents\"";
  const auto write = [](const Folder& folder) {
    write_tokenizer(folder);
    folder.write("chats.jsonl", chats(200));
  };
  const Folder at_once;
  write(at_once);
  const Losses whole = trained(at_once, config(data));
  const Folder folder;
  write(folder);
  trained(folder, config(data), "train.steps=2");
  compare(trained(folder, config(data, split_in_sequence)), whole);
  const Result other = train(folder, config(data), "data.packing=none train.steps=5");
  CHECK(other.code == 2);
  has(other.error, "data.packing: \"documents\" in the checkpoint, absent in the config");
}

TEST_CASE("the share of useful tokens is printed, and data show divides rows by documents") {
  const Folder folder;
  folder.write("triples.jsonl", triples());
  folder.write("run.toml", packed_config(small_llama));
  const std::string run = (folder.path() / "run.toml").string();
  has(run_program("data check " + run).out, "33.3% of the positions hold tokens, the loss is");
  has(run_program("data check " + run + packed).out,
      "100.0% of the positions hold tokens (36 documents are packed), the loss is");
  const std::string shown = run_program("data show " + run + packed + " --rows 1").out;
  int documents = 0;
  for (std::size_t at = shown.find("S|83 a|97 y|121"); at != std::string::npos;
       at = shown.find("S|83 a|97 y|121", at + 1)) {
    CHECK((at == 0 || shown[at - 1] == '\n'));
    ++documents;
  }
  CHECK(documents == 3);
  // Three lines of the file are named, between the row and its numbers.
  CHECK(std::ranges::count(shown.substr(0, shown.find('\n')), ',') == 4);
}

TEST_CASE("what cannot be packed is refused before the run") {
  const Folder folder;
  folder.write("triples.jsonl", triples());
  folder.write("text.txt", std::string(5000, 'a'));
  const Result family = train(
      folder, packed_config(small_model({.family = "Chain", .dim = 16, .layers = 1, .heads = 2})),
      "--plugin " TESSERA_MODELS "/Chain.so" + packed);
  CHECK(family.code == 2);
  has(family.error, "data.packing: models of the family 'Chain' read a row as one document");
  const Result text =
      train(folder, small_llama + "[data]\ntext = [\"text.txt\"]\npacking = \"documents\"\n");
  CHECK(text.code == 2);
  has(text.error, "data.packing: there are no conversations and no completions");
}
