#!/usr/bin/env perl
# Writes a source whose functions are the right sides of the tables in docs/from-pytorch.md, so that they are compiled.
#
#   from_pytorch.pl PAGE SOURCE
use strict;
use warnings;

my ($page, $source) = @ARGV;
open my $file, '<', $page or die "$page: $!\n";
my @rows;
while (<$file>) {
  next unless /^\| `(.+?)` \| `(.+)` \|$/;
  push @rows, [$., $2];
}
die "$page: " . @rows . " rows, and 120 are promised\n" if @rows < 120;
open my $out, '>', $source or die "$source: $!\n";
print $out <<'END';
// Written from docs/from-pytorch.md by from_pytorch.pl.
#include <memory>
#include <string>
#include <vector>

import tessera;

using namespace tessera;

namespace {

/// What the lines of the page use.
struct Given {
  Tensor x, y, a, b, w, q, k, v, i, mask, logits, targets, loss;
  Device device;
  DeviceMesh mesh;
  Layout layout;
  nn::Module& model;
  optim::Optimizer& optimizer;
  std::vector<nn::ParameterPointer> parameters;
  nn::ForwardHook hook;
  CheckpointedFunction function;
  LocalFunction local;
  ops::Ranks group;
  StateDict state;
  StepBody step;
};

END
for my $row (@rows) {
  my ($line, $code) = @$row;
  print $out "[[maybe_unused]] void line_$line(Given& given) {\n";
  print $out "  [[maybe_unused]] auto& [x, y, a, b, w, q, k, v, i, mask, logits, targets, loss, device, mesh, layout, model,",
    " optimizer, parameters, hook, function, local, group, state, step] = given;\n";
  my $statement = $code =~ /^const / ? "[[maybe_unused]] $code;" : "static_cast<void>($code);";
  print $out "#line $line \"docs/from-pytorch.md\"\n  $statement\n}\n";
}
print $out "\n}  // namespace\n\nint main() { return 0; }\n";
