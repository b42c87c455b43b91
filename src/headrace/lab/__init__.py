"""The lab: claims about inference, reproduced on one's own machine as pictures with conditions."""
