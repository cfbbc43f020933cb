// `tessera plugin` as a user meets it, and what it refuses.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

namespace fs = std::filesystem;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

const std::string shipped = TESSERA_SHIPPED_PLUGINS;

/// Runs `tessera plugin ...` without the plugins of whoever runs the tests.
Result plugin(const std::string& arguments) {
  return run_program("plugin " + arguments, "XDG_DATA_HOME=/nowhere TESSERA_PLUGIN_PATH= ");
}

/// An error on stderr, exit code 2, nothing on stdout.
void is_input_error(const std::string& arguments, const std::string& part) {
  const Result result = plugin(arguments);
  INFO(arguments);
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(result.error.starts_with("error: "));
  has(result.error, part);
}

/// `check` refuses the file for this reason, as one of its lines.
void is_refused(const std::string& file, const std::string& reason) {
  const Result result = plugin("check " + file);
  CHECK(result.code == 2);
  CHECK(result.error.empty());
  has(result.out, ": refused\n  ");
  has(result.out, reason);
}

std::string copy_of(const Folder& folder, const std::string& name, const std::string& as) {
  const fs::path to = folder.path() / as;
  fs::copy_file(shipped + "/" + name + ".so", to);
  return to.string();
}

std::vector<std::string> files_of(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

TEST_CASE("list shows every plugin that is found, its state, and all reasons of a refusal") {
  const Folder folder;
  copy_of(folder, "SequenceParallel", "Mine.so");
  const std::string open = copy_of(folder, "SequenceParallel", "Open.so");
  fs::permissions(open, fs::perms::others_write, fs::perm_options::add);
  const std::string text = folder.write("text.so", "only text");
  const Result result = plugin("list --plugin " + folder.path().string());
  INFO(result.error);
  CHECK(result.code == 0);
  has(result.out, "name");
  has(result.out, "SequenceParallel          style           0.1.0    usable   SequenceParallel");
  has(result.out, (folder.path() / "Mine.so").string());
  has(result.out, shipped + "/FSDP.so");
  has(result.out, open + " is refused:\n  ");
  has(result.out, "can be written by others");
  has(result.out, text + " is refused:\n  ");
  has(result.out, "not an ELF file");
  // The same content twice is no conflict; the named folder comes before the installed one.
  CHECK(result.out.find("remove one of them") == std::string::npos);
  CHECK(result.out.find("Mine.so") < result.out.find("FSDP.so"));
  has(plugin("list --help").out, "TESSERA_PLUGIN_PATH");
}

TEST_CASE("info tells what a plugin offers, its options, and how it was built") {
  const Result result = plugin("info SequenceParallel");
  CHECK(result.code == 0);
  for (const char* part :
       {"version", "0.1.0", "style SequenceParallel", "digest", "SequenceParallel.so",
        "interface fingerprint", "compiler", "sanitizers", "usable",
        "Options of style SequenceParallel", "a placement", "default \"Shard(1)\""}) {
    has(result.out, part);
  }
  CHECK(result.out.find("differs") == std::string::npos);
  has(plugin("info buckets").out,
      "Facts of change buckets\n  after distribution: changes the program\n  keeps bits\n"
      "  named in graph.passes or graph.transforms\n");
  has(plugin("info " + shipped + "/Replicate.so").out, "Options of style Replicate: none");
  is_input_error("info SequenceParalel", "did you mean 'SequenceParallel'?");
  CHECK(plugin("info /nowhere/none.so").code == 2);
}

TEST_CASE("check says usable, or every reason against a file") {
  const std::string good = shipped + "/Replicate.so";
  const Result usable = plugin("check " + good);
  CHECK(usable.code == 0);
  has(usable.out, "Replicate.so: usable, registers style Replicate\n");

  const Folder folder;
  is_refused("/nowhere/none.so", "cannot be found");
  is_refused(folder.path().string(), "not a plain file");
  is_refused(folder.write("text.so", "only text"), "not an ELF file");
  is_refused("/lib/x86_64-linux-gnu/libc.so.6", "not a plugin");
  const std::string cut = copy_of(folder, "Replicate", "cut.so");
  fs::resize_file(cut, fs::file_size(cut) - 100);
  is_refused(cut, "cut");
  const std::string open = copy_of(folder, "Replicate", "open.so");
  fs::permissions(open, fs::perms::others_write, fs::perm_options::add);
  is_refused(open, "chmod go-w " + open);

  // Of another tool chain: the names and both sides of what differs.
  const Result other = plugin("check " TESSERA_OTHER_PLUGIN);
  CHECK(other.code == 2);
  has(other.out, "  RTTI: host has on, library has off\n");
  has(other.out, "  char: host has signed, library has unsigned\n");

  const Result both = plugin("check " + good + " " + cut);
  CHECK(both.code == 2);
  has(both.out, "usable");
  has(both.out, "refused");
}

TEST_CASE("check tests what a usable plugin provides") {
  std::string all;
  for (const char* name :
       {"Replicate", "FSDP", "ColwiseParallel", "RowwiseParallel", "NoParallel", "SequenceParallel",
        "PrepareModuleInput", "adafactor", "muon", "gpt2", "lists"}) {
    all += " " + shipped + "/" + name + ".so";
  }
  const Result good = plugin("check" + all);
  INFO(good.out);
  CHECK(good.code == 0);
  has(good.out, "  style FSDP: 3 of 3 checks passed\n");
  has(good.out, "  style Replicate: 3 of 3 checks passed\n");
  has(good.out, "  style ColwiseParallel: 3 of 3 checks passed\n");
  has(good.out, "  model gpt2: 6 of 6 checks passed\n");
  has(good.out, "  change buckets: 5 of 5 checks passed\n");
  has(good.out, "  change split_lists: 5 of 5 checks passed\n");
  CHECK(good.out.find("failed:") == std::string::npos);

  const Result styles = plugin("check " TESSERA_WRONG_STYLES);
  INFO(styles.out);
  CHECK(styles.code == 2);
  has(styles.out, "failed: two ranks compute what one does: on ");
  has(styles.out,
      "failed: apply() gives no memory, and facts() says what it places: it places parameter");
  has(styles.out, "failed: its facts depend on its options only: killed its process (signal 6");
  has(styles.out, "not tried: two ranks compute what one does: it accepts no module of a Llama: ");
  has(styles.out, "style Picky: 1 of 3 checks passed");
  CHECK(plugin("check --gates-only " TESSERA_WRONG_STYLES).code == 0);

  const Result optimizer = plugin("check " TESSERA_WRONG_OPTIMIZER);
  INFO(optimizer.out);
  CHECK(optimizer.code == 2);
  has(optimizer.out, "optimizer Faulty: 2 of 5 checks passed\n");
  has(optimizer.out, "failed: gradients are multiplied by grad_scale: ");
  has(optimizer.out, "failed: lr = 0 changes no parameter: a step with lr = 0");
  has(optimizer.out, "failed: a resumed run has the same bits: ");
}

TEST_CASE("a plugin of a kind that is gone is refused with the line to change") {
  const std::string line =
      "transform 'MeanLoss': the kind 'transform' is 'change' now; write 'KIND change' instead of "
      "'KIND transform' in its CMakeLists.txt, and 'registrar.add<graph::Change>' instead of "
      "'registrar.add<graph::Transform>' in its source";
  is_refused(TESSERA_OLD_KINDS, line);
  has(plugin("list --plugin " TESSERA_OLD_KINDS).out, line);
  is_input_error("new Old --kind pass", "there is no kind 'pass' (there are templates for: ");
}

TEST_CASE("check finds what is wrong with a change that keeps bits") {
  const Result result = plugin("check " TESSERA_WRONG_PASSES);
  INFO(result.out);
  CHECK(result.code == 2);
  has(result.out, "change removes_writes: 1 of 5 checks passed");
  has(result.out,
      "failed: programs after it are right and have the same values: change 'removes_writes': "
      "program: it is not the same after a pass: output z has other values");
  has(result.out, "change depends_on_rank: 3 of 5 checks passed");
  has(result.out,
      "failed: it decides alike each time and on all ranks: a program of two ranks: equal "
      "programs are changed in different ways (rank 1)");
  has(result.out, "not tried: it changes a program: it changes none of the suite's programs");
  has(result.out, "change misnamed: 0 of 5 checks passed");
  has(result.out,
      "its plugin returned one of another name (expected 'misnamed', got "
      "'another')");
  has(result.out,
      "failed: it is described, and its facts fit its functions: it has no "
      "description");
}

TEST_CASE("check finds what is wrong with an operator") {
  const Result result = plugin("check " TESSERA_WRONG_OPERATORS);
  INFO(result.out);
  CHECK(result.code == 2);
  const auto of = [&](const std::string& name) {
    const std::size_t begin = result.out.find("  operator " + name + ":");
    REQUIRE(begin != std::string::npos);
    return result.out.substr(begin, result.out.find("\n  operator ", begin) - begin);
  };
  const auto finds = [&](const std::string& name, const std::string& text) {
    has(of(name), "7 of 9 checks passed");
    has(of(name), text);
  };
  finds("wrong_derivative", "failed: gradients are the limits of differences: wrong_derivative/");
  const auto finds_without_gradient = [&](const std::string& name, const std::string& text) {
    has(of(name), "6 of 9 checks passed");
    has(of(name), "not tried: gradients are the limits of differences: it has no gradient");
    has(of(name), text);
  };
  finds_without_gradient("wrong_shards",
                         "failed: every placement that it accepts computes what one rank does: ");
  finds_without_gradient("wrong_strides", "failed: operands and gradients may be strided: ");
  finds_without_gradient("wrong_element",
                         "failed: its element, where it has one, has the kernel's bits when it is "
                         "compiled: wrong_element/");
  // What is written between two calls makes more than one check fail.
  has(of("wrong_writes"),
      "failed: it does what it declares, and nothing else: wrong_writes writes operand 'x', "
      "which it does not declare");
  has(of("wrong_memory"), "1 of 2 checks passed");
  has(of("wrong_memory"),
      "failed: calls that follow from its schema return, or are refused: killed its process "
      "(signal 6, Aborted) in wrong_memory f64[2, 3, 4]");
  has(of("hidden_special"), "1 of 9 checks passed");
  has(of("hidden_special"), "give it examples (Op::examples)");
  has(of("shown_special"), "7 of 9 checks passed");
  CHECK(of("shown_special").find("failed:") == std::string::npos);
}

TEST_CASE("check finds what is wrong with a format of checkpoints") {
  const std::string at = TESSERA_FORMATS "/";
  const Result good = plugin("check " + at + "Flat.so");
  INFO(good.out << good.error);
  CHECK(good.code == 0);
  has(good.out, "format Flat: 4 of 4 checks passed");
  const Result wrong = plugin("check " + at + "Greedy.so " + at + "Displaced.so " + at +
                              "Unstrided.so " + at + "Trusting.so");
  INFO(wrong.out);
  CHECK(wrong.code == 2);
  has(wrong.out,
      "failed: it recognises what it writes, and nothing else: recognises() is "
      "true for an empty folder");
  has(wrong.out, "format Displaced: 3 of 4 checks passed");
  has(wrong.out,
      "failed: any box can be read, into any strides: the box of shape [2, 1, 2] at "
      "[1, 2, 0] of 'layer.bf16'");
  has(wrong.out, "format Unstrided: 2 of 4 checks passed");
  has(wrong.out, "failed: a cut file is an error: tensors.bin, cut to half, is read without");
}

TEST_CASE("check finds what is wrong with a tokenizer") {
  const std::string at = TESSERA_TOKENIZERS "/";
  const Result good = plugin("check " + at + "Pieces.so");
  INFO(good.out << good.error);
  CHECK(good.code == 0);
  has(good.out, "tokenizer Pieces: 6 of 6 checks passed");
  const Result wrong =
      plugin("check " + at + "Narrow.so " + at + "Slipped.so " + at + "Lenient.so");
  INFO(wrong.out);
  CHECK(wrong.code == 2);
  has(wrong.out, "failed: tokens have their ids: token() has something for an id outside");
  has(wrong.out, "failed: offsets are in order and within the text: offsets [1, 2) after 0");
  has(wrong.out,
      "failed: an id without a token is an error: the id -1, which no token has, is decoded");
}

TEST_CASE("check compares each kernel of a device with the CPU's, within what it declares") {
  const Result nearly = plugin("check " TESSERA_NEARLY);
  INFO(nearly.out);
  CHECK(nearly.code == 2);
  has(nearly.out, "failed: kernels compute what the CPU does: silu");
  CHECK(nearly.out.find("gelu") == std::string::npos);
  const Result tolerant = plugin("check " TESSERA_TOLERANT);
  INFO(tolerant.out);
  CHECK(tolerant.code == 0);
  has(tolerant.out, "device Tolerant: 4 of 4 checks passed");
}

TEST_CASE("new writes a folder once, and only under a name that can be used") {
  const Folder folder;
  const std::string where = " --folder " + folder.path().string();
  const Result result = plugin("new MyStyle --kind style" + where);
  INFO(result.error);
  CHECK(result.code == 0);
  const fs::path made = folder.path() / "MyStyle";
  CHECK(files_of(made) == std::vector<std::string>{"CMakeLists.txt", "MyStyle.cpp", "README.md",
                                                   "ci.sh", "run.toml"});
  for (const std::string& name : files_of(made)) {
    const std::string text = read_file(made / name);
    INFO(name);
    CHECK(text.find("MyStyle") != std::string::npos);
    CHECK(text.find("@NAME@") == std::string::npos);
  }

  std::ofstream(made / "README.md") << "mine";
  is_input_error("new MyStyle" + where, "MyStyle exists already");
  CHECK(read_file(made / "README.md") == "mine");
  folder.write("Taken", "a file");
  is_input_error("new Taken" + where, "Taken exists already");

  for (const char* name : {"my-style", "9Lives", "lower", "Two__Bars", "../Up", "''", "class"}) {
    is_input_error("new " + std::string(name) + where, "not a name for a class");
  }
  is_input_error("new Replicate" + where, "there is a style of this name already");
  is_input_error("new Other --kind wire" + where, "there are templates for: style");
  is_input_error("new Other --kind styel" + where, "did you mean 'style'?");
  is_input_error("new Other --folder /proc/none", "/proc/none cannot be created");
  CHECK(files_of(folder.path()) == std::vector<std::string>{"MyStyle", "Taken"});
}

TEST_CASE("wrong words after plugin are one error with the nearest one") {
  is_input_error("", "subcommand");
  is_input_error("lst", "plugin lst: unknown command; did you mean 'list'?");
  is_input_error("check", "FILE");
  is_input_error("info", "NAME");
  is_input_error("new", "NAME");
  is_input_error("list --plugin /nowhere.so", "/nowhere.so: there is no such file or folder");
  is_input_error("list everything", "everything");
}
