// tessera graph: what it prints of a program, and what it refuses.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using tessera::testing::small_model;
using trainer_test::Folder;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

const std::string body =
    "input %0: f32[4, 4] parameter = w\n"
    "section gradients\n"
    "  %1: f32[4, 4] activation = exp(%0) @ forward in model.layers.0.mlp\n"
    "  %2: f32[8, 4] activation = all_gather(%1; dim=0, extent=8, group=ranks 0 1) @ forward in "
    "model.layers.0.mlp\n"
    "  %3: f32[8, 4] activation = neg(%2) @ forward in model.layers.1\n"
    "  %4: f32[] activation = sum(%3; dims=[], keepdim=false) @ forward\n"
    "section update\n"
    "  neg_(%0) @ optimizer\n"
    "output %4 = loss\n";

std::string text(const std::string& of = body) {
  return "tessera program 2\nrank 0\n" + of + "end\n";
}

bool has(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("graph show: the parts of a step in their order") {
  const Folder folder;
  const std::string file = folder.write("step.txt", text());
  const Result table = run_program("graph show " + file);
  INFO(table.out << table.error);
  REQUIRE(table.code == 0);
  CHECK(has(table.out,
            "gradients  forward    model.layers.0  1     2             256 B  1 all_gather"));
  CHECK(has(table.out, "           forward    model.layers.1  3     1             320 B"));
  CHECK(has(table.out, "update     optimizer"));
  CHECK(has(run_program("graph show " + file + " --depth 1").out, "model   1     3"));
  const Result one = run_program("graph show " + file + " --module model.layers.0 --all");
  CHECK(has(one.out, "gradients  %1: f32[4, 4] activation = exp(%0)"));
  CHECK(!has(one.out, "neg"));
  const Result inner = run_program("graph show " + file + " --module model.layers.0.mlp");
  CHECK(has(inner.out, "model.layers.0.mlp  1     2"));
  const auto json = nlohmann::json::parse(run_program("graph show " + file + " --json").out);
  REQUIRE(json.at("regions").size() == 4);
  CHECK(json.at("regions")[0].at("collectives").at("all_gather") == 1);
  CHECK(json.at("regions")[0].at("instructions") == 2);
  CHECK(json.at("regions")[3].at("section") == "update");
}

TEST_CASE("graph draw: modules, collectives from issue to wait, and memory at each instruction") {
  const Folder folder;
  const std::string file = folder.write(
      "step.txt", text("input %0: f32[4, 4] parameter = w\n"
                       "section gradients\n"
                       "  %1: f32[8, 4] communication = memory.empty() @ forward\n"
                       "  all_gather_into(%1, %0; group=ranks 0 1, identity=7) @ forward\n"
                       "  %2: f32[4, 4] activation = exp(%0) @ forward in model.layers.0.mlp.up\n"
                       "  wait(%1) @ forward in model.layers.1\n"
                       "  %3: f32[8, 4] activation = neg(%1) @ backward in model.layers.1\n"
                       "section update\n"
                       "  neg_(%0) @ optimizer\n"
                       "output %3 = loss\n"));
  const std::string to = (folder.path() / "step.svg").string();
  const Result done = run_program("graph draw " + file + " --to " + to);
  INFO(done.error);
  REQUIRE(done.code == 0);
  const std::string svg = trainer_test::read_file(to);
  INFO(svg);
  CHECK(has(svg, "Step of rank 0: 6 instructions, 0 FLOP, 320 B at the peak of memory"));
  // Five calls are 1160 pixels, from 96 on; the gather takes the first three.
  CHECK(has(svg, R"(x="96.0" y="110.0" width="696.0" height="19" fill="#3f9c5a")"));
  CHECK(has(svg, R"(text-anchor="middle">layers.1<)"));
  CHECK(has(svg, R"(text-anchor="middle">mlp<)"));
  CHECK(has(svg, "peak at instruction 5"));
  CHECK(has(svg, ">communication<"));
  CHECK(!has(svg, ">optimizer state<"));
  const Result refused =
      run_program("graph draw " + file + " --to " + (folder.path() / "no/step.svg").string());
  CHECK(refused.code == 2);
  CHECK(has(refused.error, "cannot write"));
  const Result other =
      run_program("graph draw " + file + " --to " + (folder.path() / "step.png").string());
  CHECK(other.code == 2);
  CHECK(other.error.find("expected a name that ends in .svg") != std::string::npos);
}

TEST_CASE("graph stats: a program is looked at as its own rank, which its groups have") {
  const Folder folder;
  const std::string file = folder.write(
      "step.txt",
      "tessera program 2\nrank 3\ninput %0: f32[4, 4] = x\nsection step\n"
      "  %1: f32[2, 8] = all_to_all(%0; from_dim=1, from_extent=8, to_dim=0, group=ranks 2 3)\n"
      "output %1 = y\nend\n");
  const Result stats = run_program("graph stats " + file);
  INFO(stats.error);
  CHECK(stats.code == 0);
  CHECK(has(stats.out, "rank 3: 1 instructions"));
}

TEST_CASE("graph diff: the instructions that differ, and the exit status") {
  const Folder folder;
  std::string other = body;
  other.replace(other.find("exp(%0)"), 7, "sin(%0)");
  const std::string one = folder.write("one.txt", text());
  const std::string two = folder.write("two.txt", text(other));
  const Result same = run_program("graph diff " + one + " " + one);
  CHECK(same.code == 0);
  CHECK(same.out.empty());
  const Result differs = run_program("graph diff " + one + " " + two);
  CHECK(differs.code == 1);
  CHECK(has(differs.out, "-   %1: f32[4, 4] activation = exp(%0)"));
  CHECK(has(differs.out, "+   %1: f32[4, 4] activation = sin(%0)"));
}

TEST_CASE("graph: what is no program is refused with the reason") {
  const Folder folder;
  const std::string good = folder.write("step.txt", text());
  const std::string whole = text();
  const std::string cut = folder.write("cut.txt", whole.substr(0, whole.size() / 2));
  const std::string other = folder.write("other.txt", "a poem\n");
  std::string damaged = whole;
  damaged.replace(damaged.find("neg(%2)"), 7, "neg(%9)");
  const std::string wrong = folder.write("wrong.txt", damaged);
  for (const std::string& command :
       {std::string("show "), std::string("stats "), "diff " + good + " "}) {
    const auto refused = [&](const std::string& file, const std::string& why) {
      const Result result = run_program("graph " + command + file);
      INFO(command << file << ": " << result.error);
      CHECK(result.code == 2);
      CHECK(result.out.empty());
      CHECK(result.error.starts_with("error: "));
      CHECK(has(result.error, why));
    };
    refused((folder.path() / "none.txt").string(), "the program cannot be read");
    refused(folder.path().string(), "the program cannot be read (Is a directory)");
    refused(cut, "cut.txt, line ");
    refused(other, "other.txt, line 1");
    refused(wrong, "wrong.txt, line ");
  }
  const Result module = run_program("graph show " + good + " --module model.layer.0");
  CHECK(module.code == 2);
  CHECK(has(module.error,
            "no instruction is of a module 'model.layer.0'; did you mean 'model.layers."));
}

TEST_CASE("graph capture: of any rank of the mesh, before anything is trained") {
  const Folder folder;
  const std::string config = folder.write(
      "run.toml", small_model({.dim = 16, .layers = 1, .heads = 2, .kv_heads = 2, .ffn_dim = 16}) +
                      "[data]\ntext = [\"text.txt\"]\nseq_len = 8\n[train]\nsteps = 4\n"
                      "batch = 4\n[mesh]\naxes = [\"data\"]\nshape = [4]\n[[parallel]]\n"
                      "style = \"Replicate\"\naxis = \"data\"\non = [\".\"]\n");
  folder.write("text.txt", std::string(4000, 'x'));
  const std::string to = (folder.path() / "step.txt").string();
  const Result done = run_program("graph capture " + config + " --rank 3 --to " + to);
  INFO(done.error);
  REQUIRE(done.code == 0);
  CHECK(has(done.out, "replayed from the first step on"));
  CHECK(has(trainer_test::read_file(to), "tessera program 2\nrank 3\n"));
  const Result refused = run_program("graph capture " + config + " --rank 4 --to " + to);
  CHECK(refused.code == 2);
  CHECK(has(refused.error, "--rank: the mesh has no such rank (expected 0 to 3, got 4)"));
}

namespace {

/// What `graph roofline` says of a program, with these options.
nlohmann::json roofline(const std::string& file, const std::string& options = "") {
  const Result done = run_program("graph roofline " + file + options + " --json");
  INFO(done.out << done.error);
  REQUIRE(done.code == 0);
  return nlohmann::json::parse(done.out);
}

}  // namespace

TEST_CASE("graph roofline: the least time of each operator, by hand") {
  const Folder folder;
  // 2 x 3 tokens; a product of 2 * 6 * 8 * 4 = 384 FLOPs that moves 2 * (24 + 32 + 48) = 208 bytes.
  const std::string file = folder.write(
      "step.txt", text("input rows 0 %0: i64[2, 3] activation = rows.0.0\n"
                       "input rows 0 %1: i64[2, 3] activation = rows.0.1\n"
                       "input %2: bf16[8, 4] parameter = w\n"
                       "input %3: bf16[2, 3, 4] activation = x\n"
                       "section gradients\n"
                       "  %4: bf16[2, 3, 8] activation = linear(%3, %2, -) @ forward\n"
                       "  %5: bf16[6, 8] activation = view(%4; shape=[6, 8]) @ forward\n"
                       "  add_(%5, %5; alpha=1) @ forward\n"
                       "  %6: bf16[12, 8] activation = all_gather(%5; dim=0, extent=12, "
                       "group=ranks 0 1) @ forward\n"
                       "section update\n"
                       "  %7: bf16[8, 4] other = memory.empty()\n"
                       "  copy_(%7, %2) @ optimizer\n"
                       "output %6 = loss\n"));
  const auto json =
      roofline(file, " --products 1000 --bandwidth 100 --launch 0.5 --link 24 --memory 1000");
  CHECK(json.at("tokens") == 6);
  CHECK(json.at("launches") == 4);  // a view is none, a collective is one
  CHECK(json.at("flops") == 384);
  CHECK(json.at("received_bytes") == 96);
  const auto& operators = json.at("operators");
  REQUIRE(operators.size() == 3);
  CHECK(operators[0].at("operator") == "add_");  // reads two, writes one
  CHECK(operators[0].at("bytes") == 3 * 96);
  CHECK(operators[0].at("limited_by") == "memory");
  CHECK(operators[1].at("operator") == "linear");
  CHECK(operators[1].at("bytes") == 208);
  CHECK(operators[1].at("seconds") == 2.08);  // moving takes longer than 384 / 1000
  // A few elements are expected to take as long as memory takes to answer; products keep the rate.
  CHECK(operators[0].at("expected_seconds") > operators[0].at("seconds"));
  CHECK(operators[1].at("expected_seconds") == operators[1].at("seconds"));
  CHECK(json.at("expected_seconds") > json.at("seconds"));
  CHECK(operators[2].at("operator") == "copy_");
  CHECK(operators[2].at("bytes") == 2 * 64);
  const double kernels = 2.88 + 2.08 + 1.28 + 4 * 0.5;
  CHECK(std::abs(json.at("seconds").get<double>() - kernels) < 1e-9);
  CHECK(std::abs(json.at("seconds_without_overlap").get<double>() - (kernels + 4)) < 1e-9);
  const auto slow = roofline(file, " --products 100 --bandwidth 100");
  CHECK(slow.at("operators")[0].at("operator") == "linear");
  CHECK(slow.at("operators")[0].at("limited_by") == "products");
  CHECK(slow.at("limits").at("products") == 3.84);
  const Result table = run_program("graph roofline " + file + " --memory 100");
  INFO(table.out);
  CHECK(has(table.out, "more than 100 B"));
  const Result none = run_program("graph roofline " + folder.write("none.txt", text()));
  CHECK(none.code == 2);
  CHECK(has(none.error, "the program has no input with rows"));
}

TEST_CASE("graph roofline measures each kernel of a step on a device") {
  const Folder folder;
  const std::string file = folder.write(
      "step.txt", text("input rows 0 %0: i64[1, 64] activation = rows.0.0\n"
                       "input %1: f32[3, 256] parameter = table\n"
                       "input %2: f32[256, 256] parameter = w\n"
                       "section gradients\n"
                       "  %3: f32[1, 64, 256] activation = embedding(%1, %0; whole=f32[3, 256] "
                       "[Replicate] on mesh(rank=1)) @ forward\n"
                       "  %4: f32[1, 64, 256] activation = linear(%3, %2, -) @ forward\n"
                       "  %5: f32[1, 64, 256] activation = linear(%4, %2, -) @ forward\n"
                       "  %6: f32[1, 64, 256] activation = linear(%5, %2, -) @ forward\n"
                       "  %7: f32[1, 64, 256] activation = linear(%6, %2, -) @ forward\n"
                       "  %8: f32[1, 64, 256] activation = add(%7, %6; alpha=1) @ forward\n"
                       "  %9: f32[2, 64, 256] activation = all_gather(%8; dim=0, extent=2, "
                       "group=ranks 0 1) @ forward\n"
                       "output %9 = loss\n"));
  const auto json = roofline(file, " --measure cpu");
  std::map<std::string, double> seconds;
  double sum = 0;
  for (const auto& cost : json.at("operators")) {
    const double of_operator = cost.at("measured_seconds");
    seconds[cost.at("operator")] = of_operator;
    sum += of_operator;
  }
  REQUIRE(seconds.size() == 3);
  CHECK(seconds["embedding"] > 0);
  CHECK(seconds["add"] > 0);
  CHECK(seconds["linear"] > 10e-6);  // four products of 8.4 MFLOP: no core makes them faster
  CHECK(json.at("measured_seconds").get<double>() == Approx(sum));

  const Result table = run_program("graph roofline " + file + " --measure cpu");
  CHECK(has(table.out, "kernels as measured"));
  const Result unknown = run_program("graph roofline " + file + " --measure nothing:0");
  CHECK(unknown.code == 2);
  CHECK(has(unknown.error, "device 'nothing': no plugin provides it"));
  const Result meta = run_program("graph roofline " + file + " --measure meta");
  CHECK(meta.code == 2);
  CHECK(has(meta.error, "--measure: the device 'meta' computes nothing"));
}

TEST_CASE("graph roofline: a product that adds to a tensor reads and writes it") {
  const Folder folder;
  const std::string file =
      folder.write("step.txt", text("input rows 0 %0: i64[1, 4] activation = rows.0.0\n"
                                    "input %1: f8e4m3[4, 16] activation = codes\n"
                                    "input %2: f32[] activation = scale\n"
                                    "input %3: bf16[16, 16] gradient = dweight\n"
                                    "section gradients\n"
                                    "  scaled_linear_grad_weight_(%3, %1, %2, %1, %2) @ backward\n"
                                    "output %3 = loss\n"));
  const auto product = roofline(file).at("operators")[0];
  CHECK(product.at("flops") == 2 * 4 * 16 * 16);
  CHECK(product.at("bytes") == 2 * (4 * 16 + 4) + 2 * 16 * 16 * 2);
}

TEST_CASE("graph roofline: of a table, the rows at the indices are moved") {
  const Folder folder;
  const std::string file = folder.write(
      "step.txt", text("input rows 0 %0: i64[1, 4] activation = rows.0.0\n"
                       "input %1: bf16[100, 8] parameter = table\n"
                       "input %2: bf16[100, 8] gradient = dtable\n"
                       "input %6: i64[4] activation = rows\n"
                       "section gradients\n"
                       "  %3: bf16[1, 4, 8] activation = embedding(%1, %0; whole=none) @ forward\n"
                       "  %4: bf16[100, 8] gradient = embedding_backward(%3, %0, %1; whole=none) @ "
                       "backward\n"
                       "  embedding_backward_(%2, %3, %0; whole=none) @ backward\n"
                       "  %5: bf16[4, 8] activation = index_select(%1, %6; dim=0) @ forward\n"
                       "output %4 = loss\n"
                       "output %5 = selected\n"));
  const auto operators = roofline(file).at("operators");
  const auto bytes = [&](const std::string& name) -> std::int64_t {
    for (const auto& one : operators) {
      if (one.at("operator") == name) {
        return one.at("bytes");
      }
    }
    return -1;
  };
  constexpr std::int64_t rows = 4 * 8 * 2, indices = 4 * 8, table = 100 * 8 * 2;
  CHECK(bytes("embedding") == 2 * rows + indices);
  CHECK(bytes("embedding_backward") == rows + indices + table);
  CHECK(bytes("embedding_backward_") == 3 * rows + indices);
  CHECK(bytes("index_select") == 2 * rows + indices);
}

TEST_CASE("graph roofline: attention and products of 8 bits have rates of their own") {
  const Folder folder;
  const std::string file = folder.write(
      "step.txt",
      text("input rows 0 %0: i64[1, 4] activation = rows.0.0\n"
           "input %1: bf16[1, 4, 2, 8] activation = q\n"
           "input %2: f8e4m3[4, 16] activation = codes\n"
           "input %3: f8e4m3[16, 16] activation = weight\n"
           "input %4: f32[] activation = scale\n"
           "section gradients\n"
           "  %5: bf16[1, 4, 2, 8] activation, %6: f32[1, 2, 4] activation = "
           "causal_attention(%1, %1, %1, -; scale=0, window=0, softcap=0) @ forward\n"
           "  %7: bf16[4, 16] activation = scaled_linear(%2, %4, %3, %4; dtype=bf16) @ forward\n"
           "  %8: bf16[1, 4, 2, 8] activation, %9: bf16[1, 4, 2, 8] activation, "
           "%10: bf16[1, 4, 2, 8] activation = causal_attention_backward(%5, %1, %1, %1, %5, %6, "
           "-; scale=0, window=0, softcap=0) @ backward\n"
           "output %7 = loss\n"));
  const auto limits = roofline(file, " --bandwidth 1e30 --launch 1e-30").at("limits");
  // Pairs of a query and a key that it sees: 10 in each of 2 heads; two products of 8 elements, and
  // four of their gradients.
  CHECK(limits.at("attention").get<double>() == Approx(10.0 * 2 * (2 + 4) * 2 * 8 / 420e12));
  CHECK(limits.at("8-bit products") == 2.0 * 4 * 16 * 16 / 1200e12);
  CHECK(limits.at("products") == 0);
}
