// Folders of weights that layers keep as 4-bit codes.
#include <string>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::difference;
using equivalence::Folder;
using equivalence::layout;
using tessera::testing::small_model;

TEST_CASE("a packed weight of a folder is what its values give in memory", "[adapters]") {
  const Folder folder;
  std::string words;
  for (int i = 0; i < 60; ++i) {
    words += "the cat sat on the mat. ";
  }
  const std::string data = "[data]\ntext = [\"" + folder.write("a.txt", words) +
                           "\"]\nseq_len = 24\nvalidation = 0.0\n[train]\nsteps = 1\nbatch = 12\n"
                           "[optimizer]\nlr = 1e-30\nweight_decay = 0.0\n";
  const std::string random =
      small_model({.dim = 128, .layers = 1, .heads = 2, .ffn_dim = 128}) + data;
  const std::string packed =
      "[[parallel]]\nstyle = \"QLoRA\"\non = [\"**.{q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,"
      "down_proj}\"]\noptions = {rank = 4, base = \"nf4\"}\n";
  const auto whole = equivalence::train(folder, "whole", random, layout("one rank"));
  const std::string exported =
      equivalence::export_checkpoint(folder, equivalence::checkpoint(folder, "whole", 1), "start");
  const std::string from = "[model]\nfrom = \"" + exported + "\"\n" + data + packed;
  int number = 0;
  for (const char* where : {"one rank", "FSDP 3", "TP 2", "FSDP 2 x TP 2"}) {
    INFO(where);
    const auto made = equivalence::train(folder, "made", random + packed, layout(where));
    const auto read = equivalence::train(folder, "read", from, layout(where));
    CHECK(read[0].loss == made[0].loss);
    CHECK(difference(read[0].loss, whole[0].loss) > 1e-6);  // it is packed
    // Merged, the decoded weights are near the first ones, and give the run's loss.
    const std::string saved = equivalence::checkpoint(folder, "read", 1);
    const std::string to =
        equivalence::export_checkpoint(folder, saved, "merged" + std::to_string(number++));
    const auto again = equivalence::train(folder, "again",
                                          "[model]\nfrom = \"" + to + "\"\n" + data, layout(where));
    CHECK(equivalence::loss_difference(again, read) <= 2e-6);
  }
}
