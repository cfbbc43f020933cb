// The programs of docs/exported-programs.md against PyTorch, and the page's script. Both need a
// Python with PyTorch: TESSERA_REFERENCE_PYTHON, or venv/bin/python of tests/reference/README.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "difference.hpp"
#include "folder.hpp"
#include "skip.hpp"
#include "texts.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.exported;
import tessera.tensor;

using namespace tessera;
using namespace exported_test;
using testing::Folder;

namespace {

namespace fs = std::filesystem;

/// A Python with PyTorch; empty: there is none.
std::string reference_python() {
  if (const char* const named = std::getenv("TESSERA_REFERENCE_PYTHON")) {
    return named;
  }
  const std::string own = TESSERA_SOURCE_FOLDER "/venv/bin/python";
  return fs::exists(own) ? own : "";
}

void run_python(const std::string& python, const std::string& arguments) {
  const std::string line = "'" + python + "' " + arguments + " >/dev/null 2>&1";
  INFO(line);
  REQUIRE(std::system(line.c_str()) == 0);  // NOLINT(bugprone-command-processor)
}

/// The programs of a folder, by their names.
std::vector<std::string> programs_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".pt2") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, " %.1e |", value);
  return text;
}

/// A row of the page's table; what differs by more than the page allows fails.
std::string row_of(const std::string& folder, const std::string& name) {
  std::string row = "| `" + name + "` |";
  for (const Way way : {Way::plain, Way::sharded, Way::placed}) {
    INFO(name);
    try {
      const Differences found = differences(folder, name, way);
      CAPTURE(found.outputs, found.gradients, found.exact, found.exact_expected, found.steps,
              found.losses);
      CHECK(found.below(way == Way::plain ? 1e-5 : 2e-5));
      if (way == Way::plain) {
        row += number(found.outputs) + number(found.gradients) + number(found.exact) +
               number(found.exact_expected);
      }
      row += number(std::max(found.steps, found.losses));
    } catch (const std::exception& error) {
      row += std::string(" ") + error.what() + " |";
      FAIL_CHECK(error.what());
    }
  }
  return row;
}

/// The indented lines below a title of a page, without their indentation.
std::string script_below(const std::string& title, const std::string& page) {
  std::istringstream lines(page.substr(page.find(title)));
  std::string script;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    ")) {
      script += line.substr(4) + "\n";
    } else if (!script.empty()) {
      break;
    }
  }
  return script;
}

}  // namespace

TEST_CASE("all programs of the page against PyTorch", "[.all]") {
  const char* const made = std::getenv("TESSERA_EXPORTED_PROGRAMS");
  const std::string python = reference_python();
  if (made == nullptr && python.empty()) {
    testing::skip(
        "there is no Python with PyTorch (TESSERA_REFERENCE_PYTHON), and "
        "TESSERA_EXPORTED_PROGRAMS names no folder of exported_programs.py");
    return;
  }
  const Folder own;
  const std::string folder = made != nullptr ? std::string(made) : own / "programs";
  if (made == nullptr) {
    run_python(python, TESSERA_SOURCE_FOLDER "/tests/reference/exported_programs.py " + folder);
  }
  const char* const only = std::getenv("TESSERA_EXPORTED_ONLY");
  const char* const table = std::getenv("TESSERA_EXPORTED_TABLE");
  std::ofstream rows(table == nullptr ? "/dev/null" : table, std::ios::app);
  const std::string page = testing::read_file(TESSERA_SOURCE_FOLDER "/docs/exported-programs.md");
  for (const std::string& name : programs_of(folder)) {
    if (only == nullptr || name == only) {
      CHECK(testing::contains(page, "| `" + name + "` |"));
      rows << row_of(folder, name) << std::endl;
    }
  }
}

TEST_CASE("the page's script exports a folder's model", "[.script]") {
  const std::string python = reference_python();
  if (python.empty()) {
    testing::skip("there is no Python with PyTorch (TESSERA_REFERENCE_PYTHON)");
    return;
  }
  std::string script = script_below(
      "## Export", testing::read_file(TESSERA_SOURCE_FOLDER "/docs/exported-programs.md"));
  const std::size_t name = script.find("FOLDER");
  REQUIRE(name != std::string::npos);
  script.replace(name, 6, TESSERA_REFERENCE_DATA "/decoders/llama3");
  const std::size_t file = script.find("model.pt2");
  REQUIRE(file != std::string::npos);
  const Folder folder;
  const std::string program = folder / "model.pt2";
  script.replace(file, 9, program);
  run_python(python, folder.write("export.py", script));
  const auto model = exported::load_exported(program);
  CHECK((*model)(Tensors{full({2, 6}, 5, DType::i64)})[0].shape()[1] == 6);
  CHECK(exported::token_program(
            exported::read_exported_graph(*checkpoint_format("pt2").open(program)))
            .vocab > 0);
}
