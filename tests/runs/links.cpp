// The links of the planner: from the config, or measured when a run starts.
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.collective;
import tessera.app.config;
import tessera.runs;

using tessera::testing::small_model;
using namespace tessera;
using namespace tessera::app;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::run_program;

namespace {

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

}  // namespace

TEST_CASE("all ranks measure one link, and set it for every axis") {
  runs::RunSpec config;
  config.mesh.axes = {"measured", "too"};
  config.mesh.shape = {2, 2};
  config.mesh.measure_links = true;
  const DeviceMesh mesh = DeviceMesh::make(config.mesh.axes, {2, 2});
  CHECK(runs::links_text(config) == "measured when the run starts");
  std::mutex mutex;
  std::vector<Link> found;
  collective::run_threads(4, [&](collective::World& world) {
    runs::measure_links(config, mesh, world);
    const std::lock_guard lock(mutex);
    found.push_back(link_of(mesh, 0));
    found.push_back(link_of(mesh, 1));
  });
  REQUIRE(found.size() == 8);
  for (const Link& link : found) {
    CHECK(link == found[0]);
  }
  CHECK(is_power_of_two(found[0].latency));
  CHECK(is_power_of_two(found[0].bandwidth));
  // Wide bounds: four ranks may share a core with others.
  CHECK(found[0].latency >= 1e-7 / 2);
  CHECK(found[0].latency < 1);
  CHECK(found[0].bandwidth > 1e6);
  CHECK(found[0].bandwidth < 1e13);
  CHECK_FALSE(found[0] == Link{});
}

TEST_CASE("links of the config are set as they are, and nothing is measured") {
  runs::RunSpec config;
  config.mesh = {.axes = {"given", "slow"},
                 .shape = {1, 2},
                 .latency_us = {2, 50},
                 .bandwidth_gb = {20, 0.5},
                 .interface = ""};
  const DeviceMesh mesh = DeviceMesh::make(config.mesh.axes, {1, 2});
  runs::set_configured_links(config, mesh);
  collective::run_threads(
      2, [&](collective::World& world) { runs::measure_links(config, mesh, world); });
  CHECK(link_of(mesh, 0) == Link{.latency = 2 * 1e-6, .bandwidth = 20e9});
  CHECK(link_of(mesh, 1) == Link{.latency = 50 * 1e-6, .bandwidth = 0.5e9});
  CHECK(runs::links_text(config) == "given 2 us, 20 GB/s; slow 50 us, 0.5 GB/s");
  CHECK(runs::links_text(mesh) == runs::links_text(config));
}

TEST_CASE("the plan shows the links, and a run what it measured") {
  const Folder folder;
  std::string words;
  for (int i = 0; i < 100; ++i) {
    words += "some words and more of them, ";
  }
  const std::string config = folder.write(
      "run.toml", small_model({.dim = 8, .layers = 1, .heads = 2, .ffn_dim = 12}) +
                      "[data]\ntext = [\"" + folder.write("text.txt", words) +
                      "\"]\nseq_len = 8\nvalidation = 0\n[train]\nsteps = 1\nbatch = 4\n[mesh]\n"
                      "axes = [\"data\"]\nshape = [2]\n[[parallel]]\nstyle = \"Replicate\"\n"
                      "axis = \"data\"\non = [\".\"]\n");
  const auto planned =
      run_program("train " + config + " --dry-run 'mesh.latency_us=[3]' 'mesh.bandwidth_gb=[7.5]'");
  CHECK(planned.code == 0);
  has(planned.out, "data 3 us, 7.5 GB/s");
  const auto both = run_program("train " + config +
                                " --dry-run mesh.measure_links=true "
                                "'mesh.latency_us=[3]' 'mesh.bandwidth_gb=[7.5]'");
  CHECK(both.code == 2);
  has(both.error, "the links are given by mesh.latency_us; remove one of the two");
  const auto ran = run_program("train " + config + " mesh.measure_links=true");
  CHECK(ran.code == 0);
  has(ran.out, "links measured: data ");
}
