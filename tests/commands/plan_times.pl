#!/usr/bin/env perl
# Planned step times beside those of runs of the same configs: prints the table of docs/planning-figures.md. It needs a quiet
# machine, so no test calls it.
#
#   plan_times.pl REPOSITORY PROGRAM ROUNDS STEPS CONFIG...
#
# A CONFIG is the name of a file in configs, and overrides, separated by spaces. Plans and runs are made in turn.
use strict;
use warnings;
use File::Temp qw(tempdir);
use JSON::PP;

die "usage: plan_times.pl REPOSITORY PROGRAM ROUNDS STEPS CONFIG...\n" unless @ARGV >= 5;
my ($repository, $program, $rounds, $steps, @configs) = @ARGV;
my $folder = tempdir(CLEANUP => 1);
my $first_steps = 5;  # memory is touched for the first time
die "STEPS: more than $first_steps are needed\n" unless $steps > $first_steps;

sub output_of {
  my ($command) = @_;
  my $text = qx{$command 2>$folder/error};
  if ($? != 0) { system 'cat', "$folder/error"; die "failed: $command\n"; }
  return $text;
}

sub median { my @sorted = sort { $a <=> $b } @_; return $sorted[@sorted / 2]; }

$| = 1;
print "| config | planned | run | |\n| --- | --: | --: | --: |\n";
for my $config (@configs) {
  my ($name, @overrides) = split ' ', $config;
  my $metrics = "$folder/metrics.jsonl";
  my $same = join ' ', map { "'$_'" } "$repository/configs/$name.toml", @overrides, "train.steps=$steps", 'optimizer.warmup=1',
    'data.validation=0', 'checkpoint.folder=', "log.metrics=$metrics";
  my (@planned, @run);
  for (1 .. $rounds) {
    push @planned, decode_json(output_of("'$program' plan $same --json"))->{seconds};
    unlink $metrics;
    output_of("'$program' train $same");
    open my $lines, '<', $metrics or die "$metrics: $!\n";
    my @seconds = map { decode_json($_)->{seconds} } <$lines>;
    push @run, median(@seconds[$first_steps .. $#seconds]);
  }
  my ($plan, $took) = (median(@planned), median(@run));
  printf "| %s | %.1f ms | %.1f ms | %.2f |\n", $config, 1e3 * $plan, 1e3 * $took, $plan / $took;
}
