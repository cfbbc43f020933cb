#!/usr/bin/env perl
# Trains configs for 3 steps, made smaller, on the CPU and on emulated GPUs, eager and planned: losses and norms of the
# gradients agree, and another order of streams, blocks and threads, with a driver that blocks elsewhere, gives the same bits.
#   configs.pl PROGRAM EMULATOR KERNELS PLUGIN[,PLUGIN] FOLDER|CONFIG...
# A folder: all configs in it. The driver of each run on GPUs is drawn by TESSERA_EMULATOR_MODES + 1000 for each run before it.
use strict;
use warnings;
use File::Basename qw(basename);
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../support";
use EmulatedRun qw(use_emulator text_to_train_on run steps_in compare_steps);
use Files qw(text_of);

my ($program, $emulator, $kernels, $plugins, @named) = @ARGV;
my @configs = map { -d $_ ? sort glob "$_/*.toml" : $_ } @named;
die "usage: configs.pl PROGRAM EMULATOR KERNELS PLUGIN[,PLUGIN] FOLDER|CONFIG...\n" unless @configs;
my $modes = $ENV{TESSERA_EMULATOR_MODES} // 0;
my $folder = tempdir(CLEANUP => 1);
use_emulator($emulator, $kernels, 8);
text_to_train_on("$folder/text");

# The options that make a config small enough.
sub smaller {
  my ($config) = @_;
  my $text = text_of($config);
  my @options = ('model.dim=64', 'model.layers=2', 'train.steps=3', 'train.batch=4', 'optimizer.warmup=1',
    'data.seq_len=12', 'data.validation=0', "data.text=['$folder/text']", 'log.sample=0', "log.metrics=$folder/metrics",
    "checkpoint.folder=''",
    'checkpoint.every=0');
  push @options, 'model.ffn_dim=64' if $text =~ /^ffn_dim/m;
  push @options, 'model.vocab=256' if $text =~ /^vocab/m;
  return @options;
}

# Of each step: loss, norm.
sub steps_of {
  my ($config, @options) = @_;
  unlink "$folder/metrics";
  my @command = ($program, 'train', $config, (map { ('--plugin', $_) } split /,/, $plugins), smaller($config), @options);
  my ($status, $text) = run("$folder/log", @command);
  die "'@command' fails:\n$text" if $status != 0;
  return steps_in("$folder/metrics", 3);
}

for my $config (@configs) {
  my $name = basename($config, '.toml');
  my $tolerance = text_of($config) =~ /^precision = "bf16"/m ? 1e-2 : 1e-5;
  my @planned = ('graph.capture=true', 'graph.executor=planned');
  my @wanted = steps_of($config, 'train.device=cpu');
  for my $how ([], \@planned) {
    my $bits;
    for my $seed (0, 5) {
      local $ENV{TESSERA_EMULATOR_SEED} = $seed;
      local $ENV{TESSERA_EMULATOR_MODES} = $modes;
      $modes += 1000;
      my @found = steps_of($config, 'train.device=cuda', @$how);
      compare_steps("$name @$how", \@wanted, \@found, $tolerance);
      my $text = join ' ', map { @$_ } @found;
      $bits //= $text;
      die "$name @$how: another order of streams, blocks and threads, or another driver, gives other bits: $text, not $bits\n"
        unless $text eq $bits;
    }
    print "$name @$how: 3 steps agree: $bits\n";
  }
}
