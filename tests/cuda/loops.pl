#!/usr/bin/env perl
# NVRTC itself compiles the sources of generated loops that a test program gives to the emulated one, for sm_90a and as the
# plugin does it. Skipped (77) where there is no NVRTC.
#   loops.pl TEST_CUDA TEST_LOOP_SOURCES
use strict;
use warnings;
use File::Temp qw(tempdir);

my ($test_cuda, $test_sources) = @ARGV;
die "usage: loops.pl TEST_CUDA TEST_LOOP_SOURCES\n" unless defined $test_sources;
my $folder = tempdir(CLEANUP => 1);
{
  local $ENV{TESSERA_EMULATOR_SOURCES} = $folder;
  my $output = `$test_cuda "*has its kernel's bits in a loop of a GPU,loops of a GPU broadcast*" 2>&1`;
  die "$test_cuda fails:\n$output" if $? != 0;
}
my @sources = sort glob "$folder/*.cu";
die "there are " . @sources . " sources (expected at least 5)\n" unless @sources >= 5;
$ENV{TESSERA_KERNEL_CACHE} = "$folder/cache";
$ENV{LD_LIBRARY_PATH} = join ':', (grep { defined && length } $ENV{LD_LIBRARY_PATH}), '/usr/local/cuda/lib64';
system($test_sources, '90a', @sources);
exit($? >> 8);
