#!/usr/bin/env perl
# Planned memory by category against the peaks that runs of the same configs measure: prints the table of
# docs/planning-figures.md, and fails where a category, or all memory, is off by more than 2% of all memory.
#
#   plan_memory.pl REPOSITORY PROGRAM HARDWARE CONFIG...
#
# A CONFIG is the name of a file in configs, and overrides, separated by spaces.
use strict;
use warnings;
use File::Temp qw(tempdir);
use JSON::PP;

die "usage: plan_memory.pl REPOSITORY PROGRAM HARDWARE CONFIG...\n" unless @ARGV >= 4;
my ($repository, $program, $hardware, @configs) = @ARGV;
my $folder = tempdir(CLEANUP => 1);
my @failures;
# Known differences. The trial of Float8 books copies of weights that a step makes once as other memory, beside its peak.
my %known = ('float8 other' => 1);
# The step of a captured run has one block of memory, which is not divided by category.
sub has_one_block { my ($name, @overrides) = @_; return $name eq 'data_parallel' || grep { $_ eq 'graph.capture=true' } @overrides; }

sub output_of {
  my ($command) = @_;
  my $text = qx{$command 2>$folder/error};
  if ($? != 0) { system 'cat', "$folder/error"; die "failed: $command\n"; }
  return $text;
}

printf "| config | planned | run | |\n| --- | --: | --: | --: |\n";
for my $config (@configs) {
  my ($name, @overrides) = split ' ', $config;
  my $file = "$repository/configs/$name.toml";
  my $metrics = "$folder/metrics.jsonl";
  unlink $metrics;
  my $same = join ' ', map { "'$_'" } @overrides, 'train.steps=4', 'optimizer.warmup=1', 'data.validation=0',
    'checkpoint.folder=', "log.metrics=$metrics";
  my $plan = decode_json(output_of("'$program' plan '$file' --json --hardware '$hardware' $same"));
  output_of("'$program' train '$file' $same");
  open my $lines, '<', $metrics or die "$metrics: $!\n";
  my $last;
  while (my $line = <$lines>) { $last = $line; }
  my $run = decode_json($last)->{memory_peaks};
  my $planned = $plan->{memory_peaks};
  my $whole = $plan->{memory_bytes};
  printf "| %s | %.1f MiB | %.1f MiB | %.3f |\n", $config, $whole / 2**20, $run->{total} / 2**20, $whole / $run->{total};
  for my $category (has_one_block($name, @overrides) ? () : sort keys %$planned) {
    my ($here, $there) = ($planned->{$category}, $run->{$category} // 0);
    push @failures, sprintf "%s: %s is planned with %d bytes, and a run has %d", $config, $category, $here, $there
      if abs($here - $there) > 0.02 * $run->{total} && !$known{"$name $category"};
  }
  push @failures, sprintf "%s: %d bytes are planned, and a run has %d", $config, $whole, $run->{total}
    if abs($whole - $run->{total}) > 0.02 * $run->{total};
}
die join("\n", @failures) . "\n" if @failures;
