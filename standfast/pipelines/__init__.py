"""Pipelines: steps of agents, tools and people in order, declared once and frozen."""

from standfast.pipelines.builders import PipelineBuilder, pipeline
from standfast.pipelines.pipeline import Branch, Map, Parallel, Pipeline, Repeat, Stage, Step, StepContext

__all__ = [
    "Branch",
    "Map",
    "Parallel",
    "Pipeline",
    "PipelineBuilder",
    "Repeat",
    "Stage",
    "Step",
    "StepContext",
    "pipeline",
]
