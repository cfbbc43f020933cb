#!/usr/bin/env perl
# Captures steps of configs/gpu, lists the launches of their operators on the emulator, and gives the lists to expected.pl.
#   launches.pl write|compare PROGRAM EMULATOR KERNELS REPOSITORY TABLE KERNELS.TABLE PASSES -- CONFIG...
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../support";
use EmulatedRun qw(use_emulator run);
use Files qw(text_of write_file);

my ($task, $program, $emulator, $kernels, $repository, @more) = @ARGV;
my @tables = splice @more, 0, 3;
die "usage: launches.pl write|compare PROGRAM EMULATOR KERNELS REPOSITORY TABLE KERNELS.TABLE PASSES -- CONFIG...\n"
  unless @more > 1 && shift @more eq '--';
my $folder = tempdir(CLEANUP => 1);
system('perl', "$repository/configs/gpu/tokens.pl", "$folder/tokens.npy") == 0 or die "configs/gpu/tokens.pl fails\n";
my @lists;
for my $config (@more) {
  my ($status, $log) = run("$folder/log", $program, 'graph', 'capture', "$repository/configs/gpu/$config.toml",
    qq(data.tokens=["$folder/tokens.npy"]), '--to', "$folder/$config.txt");
  die "$config is not captured:\n$log" if $status != 0;
}
use_emulator($emulator, $kernels, 1);
delete $ENV{TESSERA_EMULATOR_MODES};  # what blocks matters to nothing here
$ENV{TESSERA_LOG} = 'debug';
for my $config (@more) {
  $ENV{TESSERA_EMULATOR_LAUNCHES} = "$folder/$config.list";
  # Both the program and the emulator write the list, each at its end.
  my $pid = fork // die "fork: $!\n";
  if ($pid == 0) {
    open STDERR, '>>', "$folder/$config.list" or die;
    open STDOUT, '>', '/dev/null' or die;
    exec $program, 'graph', 'roofline', "$folder/$config.txt", '--measure', 'cuda:0' or die "$program: $!\n";
  }
  waitpid $pid, 0;
  die "$config: its operators are not launched:\n", substr(text_of("$folder/$config.list"), -2000), "\n" if $? != 0;
  push @lists, "$folder/$config.list";
}
exec "$FindBin::RealBin/expected.pl", $task, @tables, @lists or die "expected.pl: $!\n";
